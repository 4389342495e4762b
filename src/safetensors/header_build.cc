// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>

#include "base/checked.h"
#include "base/units.h"
#include "safetensors/header.h"
#include "safetensors/json_internal.h"

namespace infercluster::safetensors {
namespace {

Error argument_error(std::string message) {
  return Error(ErrorCode::invalid_argument, std::move(message));
}

Status check_names(const std::vector<Tensor>& tensors, const Metadata& metadata) {
  const auto name_at = [&tensors](std::size_t i) -> const std::string& { return tensors[i].name; };
  for (const Tensor& tensor : tensors) {
    if (tensor.name == "__metadata__") return argument_error("a tensor cannot be named \"__metadata__\"");
    if (!simdjson::validate_utf8(tensor.name)) return argument_error("the name of a tensor is not UTF-8");
  }
  if (const auto twice = find_duplicate(hash_names(tensors.size(), name_at), name_at)) {
    return argument_error("duplicate name " + json::quoted(name_at(*twice)));
  }
  const auto key_at = [&metadata](std::size_t i) -> const std::string& { return metadata[i].first; };
  for (const auto& [key, value] : metadata) {
    if (!simdjson::validate_utf8(key) || !simdjson::validate_utf8(value))
      return argument_error("the metadata are not UTF-8");
  }
  if (const auto twice = find_duplicate(hash_names(metadata.size(), key_at), key_at)) {
    return argument_error("duplicate metadata key " + json::quoted(key_at(*twice)));
  }
  return {};
}

// Sets begin and end of `tensors`, which are in data order.
Status lay_out(std::vector<Tensor>& tensors) {
  std::uint64_t end = 0;
  for (Tensor& tensor : tensors) {
    const Result<std::uint64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes) {
      return argument_error(bytes.error().message()).with_kind(bytes.error().kind()).with_tensor(tensor.name);
    }
    const std::optional<std::uint64_t> next = checked_add(end, *bytes);
    if (!next) {
      return argument_error("the file would have more than 2^64 bytes")
          .with_kind("ValidationOverflow")
          .with_tensor(tensor.name);
    }
    tensor.begin = end;
    tensor.end = *next;
    end = *next;
  }
  return {};
}

void append_number(std::string& out, std::uint64_t value) {
  char digits[20];
  out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

void append_metadata(std::string& out, const Metadata& metadata) {
  out += "\"__metadata__\":{";
  const char* separator = "";
  for (const auto& [key, value] : metadata) {
    out += separator;
    json::append_string(out, key);
    out += ':';
    json::append_string(out, value);
    separator = ",";
  }
  out += '}';
}

void append_tensor(std::string& out, const Tensor& tensor) {
  json::append_string(out, tensor.name);
  out += ":{\"dtype\":\"";
  out += name_of(tensor.dtype);
  out += "\",\"shape\":[";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    if (i > 0) out += ',';
    append_number(out, tensor.shape[i]);
  }
  out += "],\"data_offsets\":[";
  append_number(out, tensor.begin);
  out += ',';
  append_number(out, tensor.end);
  out += "]}";
}

}  // namespace

Result<std::string> build_header(std::vector<Tensor>& tensors, const std::optional<Metadata>& metadata) {
  Metadata sorted = metadata.value_or(Metadata{});
  std::sort(sorted.begin(), sorted.end());
  IC_CHECK(check_names(tensors, sorted));
  std::sort(tensors.begin(), tensors.end(),
            [](const Tensor& a, const Tensor& b) { return a.dtype != b.dtype ? a.dtype < b.dtype : a.name < b.name; });
  IC_CHECK(lay_out(tensors));

  std::string out(kPrefixBytes, '\0');
  out += '{';
  if (metadata) append_metadata(out, sorted);
  bool first = !metadata;
  for (const Tensor& tensor : tensors) {
    if (!first) out += ',';
    first = false;
    append_tensor(out, tensor);
  }
  out += '}';
  out.resize(align_up(out.size(), 8), ' ');

  const std::uint64_t length = out.size() - kPrefixBytes;
  if (length > kHeaderLengthMax) {
    return Error(ErrorCode::too_large, "the header would have " + std::to_string(length) +
                                           " bytes, over the format's limit of " + std::to_string(kHeaderLengthMax))
        .with_kind("HeaderTooLarge");
  }
  for (std::size_t i = 0; i < kPrefixBytes; ++i) out[i] = static_cast<char>(length >> (8 * i) & 0xFF);
  return out;
}

}  // namespace infercluster::safetensors
