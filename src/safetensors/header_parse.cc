// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/checked.h"
#include "safetensors/header.h"
#include "safetensors/json_internal.h"

namespace infercluster::safetensors {
namespace {

using simdjson::dom::element;

static_assert(kParsePadding >= simdjson::SIMDJSON_PADDING);

constexpr std::string_view kMetadataKey = "__metadata__";

Error schema_error(std::string message) {
  return Error(ErrorCode::corrupt, std::move(message)).with_kind("InvalidHeaderDeserialization");
}

Error duplicate_error(std::string_view what, std::string_view name) {
  return schema_error("the header has the duplicate " + std::string(what) + " " + json::quoted(name))
      .with_hint("Whatever wrote the file is at fault: which of the two is meant cannot be told");
}

Status read_dtype(element value, Compatibility compatibility, Dtype& dtype) {
  std::string_view name;
  simdjson::dom::object object;
  if (compatibility == Compatibility::reference && value.get(object) == simdjson::SUCCESS) {
    if (object.size() != 1 || !(*object.begin()).value.is_null()) {
      return schema_error("its dtype is an object, but not one of a single name with null");
    }
    name = (*object.begin()).key;
  } else if (value.get(name) != simdjson::SUCCESS) {
    return schema_error("its dtype is not a string");
  }
  const std::optional<Dtype> known = parse_dtype(name);
  if (!known) {
    return schema_error("its dtype " + json::quoted(name) + " is unknown")
        .with_hint("A newer version may know it; names of dtypes are upper-case");
  }
  dtype = *known;
  return {};
}

Status read_shape(element value, std::vector<std::uint64_t>& shape) {
  simdjson::dom::array array;
  if (value.get(array) != simdjson::SUCCESS) return schema_error("its shape is not an array");
  shape.reserve(array.size());
  for (const element item : array) {
    std::uint64_t extent = 0;
    if (!json::read_integer(item, extent)) return schema_error("its shape is not made of non-negative 64-bit integers");
    shape.push_back(extent);
  }
  return {};
}

Status read_offsets(element value, Tensor& tensor) {
  simdjson::dom::array array;
  if (value.get(array) != simdjson::SUCCESS || array.size() != 2) {
    return schema_error("its data_offsets are not an array of two integers");
  }
  auto item = array.begin();
  const bool begin_read = json::read_integer(*item, tensor.begin);
  ++item;
  if (!begin_read || !json::read_integer(*item, tensor.end)) {
    return schema_error("its data_offsets are not non-negative 64-bit integers");
  }
  return {};
}

Status read_object_entry(simdjson::dom::object object, Compatibility compatibility, Tensor& tensor) {
  bool has_dtype = false;
  bool has_shape = false;
  bool has_offsets = false;
  for (const auto [key, value] : object) {
    bool* const seen = key == "dtype"          ? &has_dtype
                       : key == "shape"        ? &has_shape
                       : key == "data_offsets" ? &has_offsets
                                               : nullptr;
    if (seen == nullptr) continue;  // unknown fields are for newer readers
    if (*seen) return schema_error("it has the duplicate field " + json::quoted(key));
    *seen = true;
    if (seen == &has_dtype) IC_CHECK(read_dtype(value, compatibility, tensor.dtype));
    if (seen == &has_shape) IC_CHECK(read_shape(value, tensor.shape));
    if (seen == &has_offsets) IC_CHECK(read_offsets(value, tensor));
  }
  if (!has_dtype) return schema_error("it has no dtype");
  if (!has_shape) return schema_error("it has no shape");
  if (!has_offsets) return schema_error("it has no data_offsets");
  return {};
}

Status read_array_entry(simdjson::dom::array array, Compatibility compatibility, Tensor& tensor) {
  if (array.size() != 3) return schema_error("it is an array of other than three values");
  auto item = array.begin();
  IC_CHECK(read_dtype(*item, compatibility, tensor.dtype));
  ++item;
  IC_CHECK(read_shape(*item, tensor.shape));
  ++item;
  return read_offsets(*item, tensor);
}

Status read_entry(element value, Compatibility compatibility, Tensor& tensor) {
  simdjson::dom::object object;
  if (value.get(object) == simdjson::SUCCESS) return read_object_entry(object, compatibility, tensor);
  simdjson::dom::array array;
  if (compatibility == Compatibility::reference && value.get(array) == simdjson::SUCCESS) {
    return read_array_entry(array, compatibility, tensor);
  }
  return schema_error("it is not described by a JSON object");
}

Result<std::optional<Metadata>> read_metadata(element value, Compatibility compatibility) {
  if (value.is_null()) return std::optional<Metadata>();
  simdjson::dom::object object;
  if (value.get(object) != simdjson::SUCCESS) return schema_error("__metadata__ is not an object");
  Metadata metadata;
  for (const auto [key, item] : object) {
    std::string_view text;
    if (item.get(text) != simdjson::SUCCESS)
      return schema_error("__metadata__ " + json::quoted(key) + " is not a string");
    metadata.emplace_back(key, text);
  }
  const auto key_at = [&metadata](std::size_t i) -> const std::string& { return metadata[i].first; };
  const std::vector<HashedName> keys = hash_names(metadata.size(), key_at);
  const std::optional<std::size_t> duplicate = find_duplicate(keys, key_at);
  if (!duplicate) return std::optional(std::move(metadata));
  if (compatibility == Compatibility::strict) return duplicate_error("metadata key", key_at(*duplicate));
  Metadata last;  // of each key, the last value
  for (const std::size_t index : last_of_each(keys, key_at)) last.push_back(std::move(metadata[index]));
  return std::optional(std::move(last));
}

struct Table {
  std::vector<Tensor> tensors;
  std::optional<Metadata> metadata;
};

Result<Table> read_table(element root, Compatibility compatibility) {
  simdjson::dom::object object;
  if (root.get(object) != simdjson::SUCCESS) return schema_error("the header is not a JSON object");
  Table table;
  table.tensors.reserve(object.size());
  bool has_metadata = false;
  for (const auto [key, value] : object) {
    if (key == kMetadataKey) {
      if (has_metadata) return schema_error("the header has the duplicate name \"__metadata__\"");
      has_metadata = true;
      IC_TRY(table.metadata, read_metadata(value, compatibility));
      continue;
    }
    Tensor& tensor = table.tensors.emplace_back();
    tensor.name = key;
    if (Status read = read_entry(value, compatibility, tensor); !read.ok()) {
      return Error(read.error()).with_tensor(tensor.name);
    }
  }
  return table;
}

void keep_last_of_each_name(std::vector<Tensor>& tensors) {
  const auto name_at = [&tensors](std::size_t i) -> const std::string& { return tensors[i].name; };
  const std::vector<HashedName> names = hash_names(tensors.size(), name_at);
  if (!find_duplicate(names, name_at)) return;
  std::vector<Tensor> last;
  for (const std::size_t index : last_of_each(names, name_at)) last.push_back(std::move(tensors[index]));
  tensors = std::move(last);
}

void sort_by_range(std::vector<Tensor>& tensors) {
  const auto before = [](const Tensor& a, const Tensor& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  };
  if (!std::is_sorted(tensors.begin(), tensors.end(), before)) std::stable_sort(tensors.begin(), tensors.end(), before);
}

std::string range_of(const Tensor& tensor) {
  return "[" + std::to_string(tensor.begin) + ", " + std::to_string(tensor.end) + ")";
}

Error offset_error(const Tensor& tensor, const Tensor* previous) {
  const std::uint64_t expected = previous == nullptr ? 0 : previous->end;
  std::string message = "its data_offsets " + range_of(tensor);
  if (tensor.begin > expected) {
    message += " leave a gap: the data before it ends at " + std::to_string(expected);
  } else if (tensor.begin < expected) {
    message += " overlap those of tensor " + json::quoted(previous->name) + ", " + range_of(*previous);
  } else {
    message += " end before they begin";
  }
  return Error(ErrorCode::corrupt, std::move(message)).with_kind("InvalidOffset").with_tensor(tensor.name);
}

// `tensors` in data order. Returns where the data ends.
Result<std::uint64_t> check_layout(const std::vector<Tensor>& tensors) {
  const Tensor* previous = nullptr;
  for (const Tensor& tensor : tensors) {
    if (tensor.begin != (previous == nullptr ? 0 : previous->end) || tensor.end < tensor.begin) {
      return offset_error(tensor, previous);
    }
    const Result<std::uint64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes) return Error(bytes.error()).with_tensor(tensor.name);
    if (*bytes != tensor.bytes()) {
      return Error(ErrorCode::corrupt, "its dtype and shape need " + std::to_string(*bytes) +
                                           " bytes, but its data_offsets " + range_of(tensor) + " span " +
                                           std::to_string(tensor.bytes()))
          .with_kind("TensorInvalidInfo")
          .with_tensor(tensor.name);
    }
    previous = &tensor;
  }
  return previous == nullptr ? 0 : previous->end;
}

Status check_file_size(std::uint64_t data_begin, std::uint64_t data_bytes, std::uint64_t file_size,
                       bool allow_trailing) {
  const std::optional<std::uint64_t> expected = checked_add(data_begin, data_bytes);
  if (expected && (*expected == file_size || (allow_trailing && *expected < file_size))) return {};
  const std::string wanted = expected ? std::to_string(*expected) : "more than 2^64";
  const bool trailing = expected && *expected < file_size;
  return Error(ErrorCode::corrupt, "the header describes a file of " + wanted + " bytes, but the file has " +
                                       std::to_string(file_size) +
                                       (trailing ? ": bytes follow the last tensor" : ": it was cut short"))
      .with_kind("MetadataIncompleteBuffer")
      .with_hint(trailing ? "If the trailing bytes are meant, allow them explicitly"
                          : "The download or copy was not finished: fetch the file again");
}

}  // namespace

Result<Header> parse_header(std::span<const std::byte> json_bytes, std::uint64_t file_size,
                            const ParseOptions& options) {
  const std::string_view text(reinterpret_cast<const char*>(json_bytes.data()), json_bytes.size());
  if (!simdjson::validate_utf8(text)) {
    return Error(ErrorCode::corrupt, "the header is not UTF-8").with_kind("InvalidHeader");
  }
  simdjson::dom::parser parser;
  Result<element> root = json::parse(text, options.padded ? json::Padding::readable : json::Padding::none, parser);
  if (!root) {
    if (root.error().code() == ErrorCode::out_of_memory) return std::move(root).error();
    return schema_error("the header is " + root.error().message());
  }
  IC_TRY(Table table, read_table(*root, options.compatibility));
  if (options.compatibility == Compatibility::reference) keep_last_of_each_name(table.tensors);
  sort_by_range(table.tensors);
  const std::uint64_t data_begin = kPrefixBytes + text.size();
  Header header(std::move(table.tensors), std::move(table.metadata), data_begin, file_size);
  if (const Tensor* twice = header.duplicate()) return duplicate_error("name", twice->name);
  IC_TRY(const std::uint64_t data_bytes, check_layout(header.tensors()));
  IC_CHECK(check_file_size(data_begin, data_bytes, file_size, options.allow_trailing_bytes));
  return header;
}

}  // namespace infercluster::safetensors
