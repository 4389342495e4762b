// SPDX-License-Identifier: Apache-2.0
#include "load/seal.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/assert.h"
#include "checksum/crc32c.h"
#include "os/file.h"

namespace infercluster::load {
namespace {

constexpr std::array<char, 8> kMagic{'I', 'C', 'S', 'E', 'A', 'L', '\r', '\n'};
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeaderBytes = 44;
constexpr std::size_t kChecksumOffset = 40;
static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie in memory");

template <typename T>
void put(std::vector<std::byte>& bytes, std::size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

template <typename T>
T get(std::span<const std::byte> bytes, std::size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

Error damaged(const std::string& what) {
  return Error(ErrorCode::corrupt, "the seal is damaged: " + what)
      .with_kind("SealDamaged")
      .with_hint("Seal the file again, once its bytes are known to be good");
}

std::uint32_t combined(std::uint64_t file_size, std::span<const std::uint32_t> block_crcs) {
  std::uint32_t root = 0;
  std::uint64_t left = file_size;
  for (const std::uint32_t crc : block_crcs) {
    const std::uint64_t bytes = std::min(left, kSealBlockBytes);
    root = checksum::crc32c_combine(root, crc, bytes);
    left -= bytes;
  }
  return root;
}

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace

Seal::Seal(std::uint64_t file_size, std::vector<std::uint32_t> block_crcs)
    : file_size_(file_size), root_(combined(file_size, block_crcs)), block_crcs_(std::move(block_crcs)) {
  IC_ASSERT(block_crcs_.size() == seal_block_count(file_size));
}

Result<Seal> Seal::parse(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes) {
    return damaged("it has " + std::to_string(bytes.size()) + " bytes, fewer than a header's " +
                   std::to_string(kHeaderBytes));
  }
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) return damaged("it does not begin as a seal does");
  const auto version = get<std::uint32_t>(bytes, 8);
  if (version != kVersion) {
    return Error(ErrorCode::unsupported,
                 "the seal has version " + std::to_string(version) + ", and this program knows version 1")
        .with_kind("SealVersion")
        .with_hint("Use the release that wrote it, or seal the file again");
  }
  if (get<std::uint32_t>(bytes, 12) != kSealBlockBytes) return damaged("its block size is not 65536");
  const auto file_size = get<std::uint64_t>(bytes, 16);
  const auto blocks = get<std::uint64_t>(bytes, 24);
  const std::uint64_t table_bytes = bytes.size() - kHeaderBytes;
  // Compared by division: `blocks` is whatever the file says.
  if (blocks != seal_block_count(file_size) || table_bytes % 4 != 0 || blocks != table_bytes / 4) {
    return damaged("it says " + std::to_string(blocks) + " blocks for a file of " + std::to_string(file_size) +
                   " bytes, and holds " + std::to_string(table_bytes) + " bytes of checksums");
  }
  const std::span<const std::byte> table = bytes.subspan(kHeaderBytes);
  const std::uint32_t crc = checksum::crc32c(table, checksum::crc32c(bytes.first(kChecksumOffset)));
  if (get<std::uint32_t>(bytes, 36) != 0 || get<std::uint32_t>(bytes, kChecksumOffset) != crc)
    return damaged("its own checksum does not match");
  std::vector<std::uint32_t> block_crcs(blocks);
  if (blocks != 0) std::memcpy(block_crcs.data(), table.data(), table.size());
  Seal seal(file_size, std::move(block_crcs));
  if (seal.root() != get<std::uint32_t>(bytes, 32)) return damaged("its root does not follow from its blocks");
  return seal;
}

std::vector<std::byte> Seal::serialize() const {
  std::vector<std::byte> bytes(kHeaderBytes + block_crcs_.size() * sizeof(std::uint32_t));
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  put(bytes, 8, kVersion);
  put(bytes, 12, static_cast<std::uint32_t>(kSealBlockBytes));
  put(bytes, 16, file_size_);
  put(bytes, 24, static_cast<std::uint64_t>(block_crcs_.size()));
  put(bytes, 32, root_);
  if (!block_crcs_.empty()) {
    std::memcpy(bytes.data() + kHeaderBytes, block_crcs_.data(), block_crcs_.size() * sizeof(std::uint32_t));
  }
  const std::span<const std::byte> all = bytes;
  put(bytes, kChecksumOffset,
      checksum::crc32c(all.subspan(kHeaderBytes), checksum::crc32c(all.first(kChecksumOffset))));
  return bytes;
}

std::string Seal::root_hex() const {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(8, '0');
  for (std::size_t i = 0; i < 8; ++i) text[i] = kDigits[(root_ >> (28 - 4 * i)) & 15];
  return text;
}

std::uint64_t Seal::block_bytes(std::uint64_t block) const {
  IC_ASSERT(block < block_crcs_.size());
  return std::min(kSealBlockBytes, file_size_ - block * kSealBlockBytes);
}

bool Seal::check_block(std::uint64_t block, std::span<const std::byte> bytes) const {
  IC_ASSERT(bytes.size() == block_bytes(block));
  return checksum::crc32c(bytes) == block_crcs_[block];
}

std::string seal_path_of(const std::string& path, const std::string& seal_directory) {
  std::string place = path;
  if (!seal_directory.empty()) {
    const std::size_t slash = path.rfind('/');
    const bool ends_with_slash = seal_directory.back() == '/';
    place =
        seal_directory + (ends_with_slash ? "" : "/") + (slash == std::string::npos ? path : path.substr(slash + 1));
  }
  return place.append(kSealSuffix);
}

Result<Seal> find_seal(const std::string& path, const std::string& seal_directory, std::uint64_t file_size) {
  const std::string place = seal_path_of(path, seal_directory);
  const std::uint64_t expected = kHeaderBytes + seal_block_count(file_size) * sizeof(std::uint32_t);
  // A seal of a somewhat larger file is read too, so that its size can be named.
  auto text = os::read_small_file(place, expected + (std::uint64_t{1} << 20));
  if (!text.ok()) {
    if (text.error().code() == ErrorCode::too_large) {
      return damaged("it is far larger than the seal of a file of " + std::to_string(file_size) + " bytes")
          .with_path(place);
    }
    return std::move(text).error();
  }
  auto seal = Seal::parse(std::as_bytes(std::span(*text)));
  if (!seal.ok()) return std::move(seal).error().with_path(place);
  if (seal->file_size() != file_size) {
    return Error(ErrorCode::corrupt, "the file has " + std::to_string(file_size) + " bytes, and its seal (" + place +
                                         ") is of a file of " + std::to_string(seal->file_size()) + " bytes")
        .with_path(path)
        .with_kind("SealSize")
        .with_hint("The file was cut or replaced after it was sealed: fetch it again, or seal it again if it is right");
  }
  return seal;
}

void SealBuilder::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::uint64_t filled = file_size_ % kSealBlockBytes;
    const std::size_t count = std::min<std::size_t>(bytes.size(), kSealBlockBytes - filled);
    open_crc_ = checksum::crc32c(bytes.first(count), open_crc_);
    file_size_ += count;
    if (filled + count == kSealBlockBytes) {
      block_crcs_.push_back(open_crc_);
      open_crc_ = 0;
    }
    bytes = bytes.subspan(count);
  }
}

Seal SealBuilder::finish() {
  if (file_size_ % kSealBlockBytes != 0) block_crcs_.push_back(open_crc_);
  return {file_size_, std::move(block_crcs_)};
}

BlobName blob_name_of(std::string_view resolved_path) {
  const std::size_t slash = resolved_path.rfind('/');
  if (slash == std::string_view::npos) return {};
  const std::string_view name = resolved_path.substr(slash + 1);
  const std::string_view folder = resolved_path.substr(0, slash);
  if (folder != "blobs" && !folder.ends_with("/blobs")) return {};
  if (!is_hex(name)) return {};
  if (name.size() == 64) return {BlobName::Kind::sha256, std::string(name)};
  if (name.size() == 40) return {BlobName::Kind::sha1, std::string(name)};
  return {};
}

}  // namespace infercluster::load
