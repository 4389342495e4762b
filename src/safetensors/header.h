// SPDX-License-Identifier: Apache-2.0
// The safetensors header: bytes <-> tensor table. Pure: no I/O. The format: 8 bytes little-endian header length N, N
// bytes of JSON, then the data. Rules and their order are the reference implementation's (safetensors 0.8), stricter
// where it is lax.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "safetensors/dtype.h"
#include "safetensors/hashed_names.h"

namespace infercluster::safetensors {

inline constexpr std::uint64_t kHeaderLengthMax = 100'000'000;  // bytes of JSON, as in the reference
inline constexpr std::uint64_t kPrefixBytes = 8;
inline constexpr std::size_t kParsePadding = 64;

struct Tensor {
  std::string name;
  Dtype dtype = Dtype::u8;
  std::vector<std::uint64_t> shape;  // elements per dimension; empty: a scalar
  std::uint64_t begin = 0;           // bytes from the start of the data section
  std::uint64_t end = 0;

  [[nodiscard]] std::uint64_t bytes() const { return end - begin; }
};

enum class Compatibility : std::uint8_t {
  strict,     // refuses duplicate names, array-form tensors, enum-map dtypes
  reference,  // accepts what safetensors 0.8 accepts
};

struct ParseOptions {
  Compatibility compatibility = Compatibility::strict;
  bool allow_trailing_bytes = false;
  bool padded = false;  // kParsePadding bytes after the JSON may be read, whatever they hold: that saves a copy
};

using Metadata = std::vector<std::pair<std::string, std::string>>;  // in the file's order

class Header {
 public:
  Header() = default;
  // `tensors` in data order, checked by the parser.
  Header(std::vector<Tensor> tensors, std::optional<Metadata> metadata, std::uint64_t data_begin,
         std::uint64_t file_size);

  Header(Header&&) noexcept = default;
  Header& operator=(Header&&) noexcept = default;
  Header(const Header&) = delete;  // a copy of 100,000 entries is never meant
  Header& operator=(const Header&) = delete;
  ~Header() = default;

  [[nodiscard]] const std::vector<Tensor>& tensors() const { return tensors_; }  // by (begin, end), then as in the file
  [[nodiscard]] const std::optional<Metadata>& metadata() const { return metadata_; }
  [[nodiscard]] std::uint64_t data_begin() const { return data_begin_; }  // file offset of the data section
  [[nodiscard]] std::uint64_t file_size() const { return file_size_; }
  [[nodiscard]] const Tensor* find(std::string_view name) const;  // nullptr: not there; O(log n)
  [[nodiscard]] const Tensor* duplicate()
      const;  // one whose name another bears too; nullptr, as after every parse: none

 private:
  std::vector<Tensor> tensors_;
  std::optional<Metadata> metadata_;
  std::uint64_t data_begin_ = 0;
  std::uint64_t file_size_ = 0;
  std::vector<HashedName> by_name_;  // of tensors_
};

// From the first bytes of a file (up to 8) and its size: the JSON's length N. Errors bear the kinds HeaderTooSmall,
// HeaderTooLarge, InvalidHeaderLength; a Git LFS pointer, an HTML page, a pickle or a zip is named as such in the
// message.
Result<std::uint64_t> parse_header_length(std::span<const std::byte> prefix, std::uint64_t file_size);

// `json` is the N bytes after the prefix. Error kinds: InvalidHeader, InvalidHeaderDeserialization, InvalidOffset,
// ValidationOverflow, MisalignedSlice, TensorInvalidInfo, MetadataIncompleteBuffer; all code corrupt. Linear in the
// header's size.
Result<Header> parse_header(std::span<const std::byte> json, std::uint64_t file_size, const ParseOptions& options = {});

// What a writer puts before the data, byte for byte as the reference does: the prefix, compact JSON (metadata first),
// padding with spaces to a multiple of 8. `tensors` may come in any order with begin and end unset; on success they are
// sorted as they lie in the file, with begin and end set. Refused: duplicate names or metadata keys, a tensor named
// "__metadata__", text that is not UTF-8, sizes that overflow or are not whole bytes (kinds as in tensor_bytes), a
// header over the limit (HeaderTooLarge). The code is invalid_argument or too_large.
Result<std::string> build_header(std::vector<Tensor>& tensors, const std::optional<Metadata>& metadata);

// Bytes of a tensor of this dtype and shape; kinds ValidationOverflow and MisalignedSlice (not whole bytes) on error.
Result<std::uint64_t> tensor_bytes(Dtype dtype, std::span<const std::uint64_t> shape);

}  // namespace infercluster::safetensors
