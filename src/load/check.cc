// SPDX-License-Identifier: Apache-2.0
#include "load/check.h"

#include <algorithm>
#include <utility>

#include "checksum/crc32c.h"

namespace infercluster::load {

std::string content_of(const safetensors::Header& header, std::uint64_t begin, std::uint64_t end) {
  if (begin < header.data_begin()) return "the header";
  const auto& tensors = header.tensors();
  const std::uint64_t from = begin - header.data_begin();
  const std::uint64_t to = end - header.data_begin();
  const auto ends_behind = [](std::uint64_t offset, const safetensors::Tensor& tensor) { return offset < tensor.end; };
  const auto starts_before = [](const safetensors::Tensor& tensor, std::uint64_t offset) {
    return tensor.begin < offset;
  };
  const auto first = std::upper_bound(tensors.begin(), tensors.end(), from, ends_behind);
  const auto last = std::lower_bound(first, tensors.end(), to, starts_before);
  if (first == last) return "bytes behind the last tensor";
  std::string text = "tensor \"" + first->name + "\"";
  if (const auto others = last - first - 1; others > 0) text += " and " + std::to_string(others) + " more";
  return text;
}

FileCheck::FileCheck(const Seal* seal, std::string sha256) : seal_(seal), sha256_(std::move(sha256)) {}

void FileCheck::end_block() {
  if (block_ >= seal_->block_count() || open_crc_ != seal_->block_crc(block_)) {
    if (bad_blocks_ == 0) first_bad_block_ = block_;
    ++bad_blocks_;
  }
  open_crc_ = 0;
  ++block_;
}

void FileCheck::add(std::span<const std::byte> bytes) {
  if (!sha256_.empty()) digest_.add(bytes);
  if (seal_ == nullptr) return;
  while (!bytes.empty()) {
    const std::uint64_t filled = bytes_ % kSealBlockBytes;
    const std::size_t count = std::min<std::size_t>(bytes.size(), kSealBlockBytes - filled);
    open_crc_ = checksum::crc32c(bytes.first(count), open_crc_);
    bytes_ += count;
    if (filled + count == kSealBlockBytes) end_block();
    bytes = bytes.subspan(count);
  }
}

std::optional<std::string> FileCheck::finish(const safetensors::Header& header) {
  std::string wrong;
  if (seal_ != nullptr) {
    if (bytes_ % kSealBlockBytes != 0) end_block();
    if (bytes_ != seal_->file_size()) {
      wrong = "it has " + std::to_string(bytes_) + " bytes, and its seal is of " + std::to_string(seal_->file_size());
    } else if (bad_blocks_ > 0) {
      const std::uint64_t begin = first_bad_block_ * kSealBlockBytes;
      const std::uint64_t end = std::min(begin + kSealBlockBytes, bytes_);
      wrong = content_of(header, begin, end) + " at offset " + std::to_string(begin) +
              ": bytes differ from the seal in " + std::to_string(bad_blocks_) + " of " +
              std::to_string(seal_->block_count()) + " blocks of 64 KiB";
    }
  }
  if (!sha256_.empty()) {
    const std::string found = digest_.finish_hex();
    if (found != sha256_)
      wrong += (wrong.empty() ? "" : "; ") + ("its SHA-256 is " + found + ", and the blob's name says " + sha256_);
  }
  if (wrong.empty()) return std::nullopt;
  return wrong;
}

}  // namespace infercluster::load
