// SPDX-License-Identifier: Apache-2.0
#include "safetensors/header.h"

#include <algorithm>
#include <array>

#include "base/checked.h"
#include "base/units.h"

namespace infercluster::safetensors {
namespace {

constexpr std::string_view kFetchHint =
    "The real weights were not fetched: run `git lfs pull` in the repository, or download the file again";
constexpr std::string_view kDownloadHint = "Download the file again";
constexpr std::string_view kConvertHint = "Convert it to safetensors, or use the repository's .safetensors file";

struct Lookalike {
  std::string_view magic;  // the first bytes, or as many as fit the 8 that are looked at
  std::string_view what;
  std::string_view hint;
};

// What people have in hand when the first eight bytes are not a length.
constexpr std::array kLookalikes{
    Lookalike{"version ", "a Git LFS pointer, not the weights", kFetchHint},
    Lookalike{"<!DOCTYP", "a saved HTML page", kDownloadHint},
    Lookalike{"<!doctyp", "a saved HTML page", kDownloadHint},
    Lookalike{"<html", "a saved HTML page", kDownloadHint},
    Lookalike{"<HTML", "a saved HTML page", kDownloadHint},
    Lookalike{"<?xml", "a saved XML document, such as a server's error message", kDownloadHint},
    Lookalike{"{\"", "a JSON document, such as a server's error message or an index", kDownloadHint},
    Lookalike{"Entry no", "a server's error message", kDownloadHint},
    Lookalike{"Invalid ", "a server's error message", kDownloadHint},
    Lookalike{"PK\x03\x04", "a zip archive, as torch.save writes", kConvertHint},
    Lookalike{"\x80\x02", "a Python pickle, as torch.save wrote", kConvertHint},
    Lookalike{"\x80\x03", "a Python pickle", kConvertHint},
    Lookalike{"\x80\x04", "a Python pickle", kConvertHint},
    Lookalike{"\x80\x05", "a Python pickle", kConvertHint},
    Lookalike{"GGUF", "a GGUF file, as llama.cpp uses", kConvertHint},
    Lookalike{"\x93NUMPY", "a NumPy array file", kConvertHint},
    Lookalike{"\x89HDF", "an HDF5 file", kConvertHint},
    Lookalike{"\x1f\x8b", "a gzip archive", "Unpack it first"},
};

Error length_error(std::string kind, std::string_view prefix, std::string message, std::string_view hint) {
  for (const Lookalike& lookalike : kLookalikes) {
    if (!prefix.starts_with(lookalike.magic)) continue;
    return Error(ErrorCode::corrupt, "not a safetensors file: this is " + std::string(lookalike.what))
        .with_kind(std::move(kind))
        .with_hint(std::string(lookalike.hint));
  }
  if (prefix.find_first_not_of('\0') == std::string_view::npos && !prefix.empty()) {
    message += "; it begins with zeros, as files do whose download was not finished";
  }
  return Error(ErrorCode::corrupt, std::move(message)).with_kind(std::move(kind)).with_hint(std::string(hint));
}

std::uint64_t read_little_endian(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < kPrefixBytes; ++i) value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  return value;
}

}  // namespace

Header::Header(std::vector<Tensor> tensors, std::optional<Metadata> metadata, std::uint64_t data_begin,
               std::uint64_t file_size)
    : tensors_(std::move(tensors)),
      metadata_(std::move(metadata)),
      data_begin_(data_begin),
      file_size_(file_size),
      by_name_(hash_names(tensors_.size(), [this](std::size_t i) -> const std::string& { return tensors_[i].name; })) {}

const Tensor* Header::find(std::string_view name) const {
  const auto index =
      find_name(by_name_, name, [this](std::size_t i) -> const std::string& { return tensors_[i].name; });
  return index ? &tensors_[*index] : nullptr;
}

const Tensor* Header::duplicate() const {
  const auto index = find_duplicate(by_name_, [this](std::size_t i) -> const std::string& { return tensors_[i].name; });
  return index ? &tensors_[*index] : nullptr;
}

Result<std::uint64_t> parse_header_length(std::span<const std::byte> prefix, std::uint64_t file_size) {
  const std::span<const std::byte> first = prefix.first(std::min<std::size_t>(prefix.size(), kPrefixBytes));
  // The bytes as text; reading them as char is what the aliasing rules allow.
  const std::string_view text(reinterpret_cast<const char*>(first.data()), first.size());
  if (file_size < kPrefixBytes || first.size() < kPrefixBytes) {
    const std::string found =
        file_size == 0 ? "the file is empty" : "the file has " + std::to_string(file_size) + " bytes";
    return length_error("HeaderTooSmall", text, found + ", too few for the 8-byte header length",
                        "The download was not finished: download the file again");
  }
  const std::uint64_t length = read_little_endian(first);
  if (length > kHeaderLengthMax) {
    return length_error("HeaderTooLarge", text,
                        "the header length is " + std::to_string(length) + " bytes, over the limit of " +
                            std::to_string(kHeaderLengthMax),
                        "This is not a safetensors file, or its first bytes are damaged");
  }
  if (length > file_size - kPrefixBytes) {
    return length_error("InvalidHeaderLength", text,
                        "the header is " + std::to_string(length) +
                            " bytes long by its first 8 bytes, but the file has only " + std::to_string(file_size) +
                            " bytes",
                        "The file was cut short, or is not a safetensors file: download it again");
  }
  return length;
}

Result<std::uint64_t> tensor_bytes(Dtype dtype, std::span<const std::uint64_t> shape) {
  std::optional<std::uint64_t> bits = 1;
  for (const std::uint64_t extent : shape) {
    bits = checked_multiply(*bits, extent);  // in this order: [2^63, 2, 0] overflows, [0, 2^63, 2] does not
    if (!bits) break;
  }
  if (bits) bits = checked_multiply<std::uint64_t>(*bits, bits_of(dtype));
  if (!bits) {
    return Error(ErrorCode::corrupt, "its shape has more bits than 64-bit arithmetic holds")
        .with_kind("ValidationOverflow");
  }
  if (*bits % 8 != 0) {
    return Error(ErrorCode::corrupt, "its " + std::to_string(*bits) + " bits are not a whole number of bytes")
        .with_kind("MisalignedSlice");
  }
  return *bits / 8;
}

}  // namespace infercluster::safetensors
