// SPDX-License-Identifier: Apache-2.0
// Checks a whole file's bytes, as they come in file order, against what is known of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "checksum/sha256.h"
#include "load/seal.h"
#include "safetensors/header.h"

namespace infercluster::load {

// What a stretch [begin, end) of a safetensors file holds, in words: `tensor "a"`, `tensor "a" and 2 more`, `the
// header`.
std::string content_of(const safetensors::Header& header, std::uint64_t begin, std::uint64_t end);

// One thread. Keeps the checksum of the block that is not whole yet, and no bytes.
class FileCheck {
 public:
  // `seal` is borrowed, and null where there is none; an empty `sha256` is not checked.
  FileCheck(const Seal* seal, std::string sha256);

  void add(std::span<const std::byte> bytes);

  // Once, after the last byte: what is wrong, with tensor and offset of the first bad block where a seal can tell;
  // nullopt: all is good.
  std::optional<std::string> finish(const safetensors::Header& header);

 private:
  void end_block();

  const Seal* seal_;
  std::string sha256_;
  checksum::Sha256 digest_;
  std::uint64_t bytes_ = 0;
  std::uint32_t open_crc_ = 0;
  std::uint64_t block_ = 0;
  std::uint64_t bad_blocks_ = 0;
  std::uint64_t first_bad_block_ = 0;
};

}  // namespace infercluster::load
