// SPDX-License-Identifier: Apache-2.0
// Which bytes of a stored chunk belong where in a wanted box: equal rows, in the order in which they lie in the file.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "checkpoint/plan.h"
#include "manifest/index.h"

namespace infercluster::checkpoint {

class BoxCopy {
 public:
  // The part of `chunk` that lies in `wanted`, a box of the same tensor whose bytes are row-major at `to`. Nothing when
  // they have no element in common. Error unsupported: elements of less than a byte that part within one.
  static Result<std::optional<BoxCopy>> between(const manifest::Chunk& chunk, const Box& wanted, std::byte* to);

  [[nodiscard]] std::uint64_t rows() const { return rows_; }
  [[nodiscard]] std::uint64_t row_bytes() const { return row_bytes_; }
  [[nodiscard]] std::uint64_t file_offset(std::uint64_t row) const;  // ascending, without overlaps
  [[nodiscard]] std::uint64_t chunk_begin() const { return chunk_begin_; }
  [[nodiscard]] std::uint64_t chunk_end() const { return chunk_end_; }

  // Copies what of it lies in `bytes`, which were read from `offset` on.
  void copy(const std::byte* bytes, std::uint64_t offset, std::uint64_t length) const;

 private:
  [[nodiscard]] std::uint64_t target_offset(std::uint64_t row) const;
  [[nodiscard]] std::uint64_t offset_by(std::uint64_t row, const std::vector<std::uint64_t>& strides) const;

  std::uint64_t chunk_begin_ = 0;  // file offsets
  std::uint64_t chunk_end_ = 0;
  std::uint64_t rows_ = 1;
  std::uint64_t row_bytes_ = 0;
  std::vector<std::uint64_t> counts_;        // of the dimensions outside of a row
  std::vector<std::uint64_t> file_strides_;  // bytes
  std::vector<std::uint64_t> target_strides_;
  std::uint64_t file_base_ = 0;
  std::uint64_t target_base_ = 0;
  std::byte* to_ = nullptr;
};

}  // namespace infercluster::checkpoint
