// SPDX-License-Identifier: Apache-2.0
// Seals: checksums of stock safetensors files, in a file beside each (NAME.icseal) or in a directory of their own.
//
// Format, version 1. All numbers are little-endian.
//   offset  bytes
//        0      8  magic: 'I' 'C' 'S' 'E' 'A' 'L' 0x0D 0x0A
//        8      4  version: 1
//       12      4  block size in bytes: 65536
//       16      8  file size in bytes
//       24      8  number of blocks n: ceil(file size / block size)
//       32      4  root: CRC32C of the whole file
//       36      4  zero
//       40      4  CRC32C of the bytes 0 to 39 followed by the table
//       44    4 n  the table: CRC32C of each block, from file offset 0; the last block may be short
// Nothing follows. A reader refuses another version by its number, and everything that breaks these rules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace infercluster::load {

inline constexpr std::uint64_t kSealBlockBytes = std::uint64_t{64} << 10;
inline constexpr std::string_view kSealSuffix = ".icseal";

// Immutable; thread-safe.
class Seal {
 public:
  // `block_crcs` holds one CRC32C per block of a file of `file_size` bytes (asserted).
  Seal(std::uint64_t file_size, std::vector<std::uint32_t> block_crcs);

  // Errors: corrupt, and unsupported for another version. The path is the caller's to add.
  static Result<Seal> parse(std::span<const std::byte> bytes);
  [[nodiscard]] std::vector<std::byte> serialize() const;

  [[nodiscard]] std::uint64_t file_size() const { return file_size_; }
  [[nodiscard]] std::uint64_t block_count() const { return block_crcs_.size(); }
  [[nodiscard]] std::uint32_t block_crc(std::uint64_t block) const { return block_crcs_[block]; }
  [[nodiscard]] std::uint32_t root() const { return root_; }  // CRC32C of the whole file
  [[nodiscard]] std::string root_hex() const;                 // as 8 hexadecimal digits

  // Bytes of this block: kSealBlockBytes but for the last.
  [[nodiscard]] std::uint64_t block_bytes(std::uint64_t block) const;
  // Whether these are the bytes that were sealed; `bytes` is the whole block (asserted).
  [[nodiscard]] bool check_block(std::uint64_t block, std::span<const std::byte> bytes) const;

  friend bool operator==(const Seal&, const Seal&) = default;

 private:
  std::uint64_t file_size_ = 0;
  std::uint32_t root_ = 0;
  std::vector<std::uint32_t> block_crcs_;
};

// Blocks of a file of that many bytes.
constexpr std::uint64_t seal_block_count(std::uint64_t file_size) {
  return file_size / kSealBlockBytes + (file_size % kSealBlockBytes != 0 ? 1 : 0);
}

// Where the seal of the file at `path` lies: beside it, or under its name in `seal_directory` when that is not empty.
std::string seal_path_of(const std::string& path, const std::string& seal_directory);

// Reads the seal of the file at `path`, which has `file_size` bytes. Errors: not_found when there is none; corrupt when
// the seal itself is damaged, or when it is of a file of another size (the file was cut, or replaced after it was
// sealed).
Result<Seal> find_seal(const std::string& path, const std::string& seal_directory, std::uint64_t file_size);

// Gathers block checksums from bytes in file order, cut anywhere.
class SealBuilder {
 public:
  void add(std::span<const std::byte> bytes);
  [[nodiscard]] Seal finish();  // once; the file ends here

 private:
  std::vector<std::uint32_t> block_crcs_;
  std::uint64_t file_size_ = 0;
  std::uint32_t open_crc_ = 0;  // of the block that is not full yet
};

// What the name of a Hugging Face cache blob says about its bytes.
struct BlobName {
  enum class Kind : std::uint8_t {
    none,    // not a blob
    sha256,  // the SHA-256 of the whole file
    sha1,    // a git object name: not a plain checksum of the file, so the file counts as unverified
  };
  Kind kind = Kind::none;
  std::string hex;  // lower case
};
// `resolved_path` is what links lead to: a file whose folder is named "blobs" and whose name is 64 or 40 hexadecimal
// digits.
BlobName blob_name_of(std::string_view resolved_path);

}  // namespace infercluster::load
