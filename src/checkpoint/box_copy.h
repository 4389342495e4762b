// SPDX-License-Identifier: Apache-2.0
// Which bytes of a stored chunk belong where in memory that holds a box of the same tensor. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "checkpoint/plan.h"
#include "checkpoint/strided_copy.h"
#include "manifest/index.h"

namespace infercluster::checkpoint {

// Bytes between neighbours of each dimension of a box in memory: 0 and negative ones too. Empty: row-major, no gaps.
using Strides = std::vector<std::int64_t>;

enum class MemoryUse : std::uint8_t { read, write };

// Refused (invalid_argument, by the tensor's name): another number of strides than dimensions, elements of less than a
// byte with strides, distances beyond 2^63, and, where it is written to, elements that may overlap.
Status check_strides(const Piece& piece, const Strides& strides, MemoryUse use);

class BoxCopy {
 public:
  // The part of `chunk` that lies in `wanted`, a box whose bytes lie in memory at `strides`, which were checked.
  // Nothing when they have no element in common. Error unsupported: elements of less than a byte that part within one.
  static Result<std::optional<BoxCopy>> between(const manifest::Chunk& chunk, const Box& wanted,
                                                const Strides& strides = {});

  // In the file: rows of neighbours, ascending.
  [[nodiscard]] std::uint64_t rows() const { return rows_; }
  [[nodiscard]] std::uint64_t row_bytes() const { return row_bytes_; }
  [[nodiscard]] std::uint64_t file_offset(std::uint64_t row) const;
  [[nodiscard]] std::uint64_t chunk_begin() const { return chunk_begin_; }
  [[nodiscard]] std::uint64_t chunk_end() const { return chunk_end_; }

  // What of it lies between two offsets of the file.
  struct Dimension {
    std::uint64_t count = 1;
    std::uint64_t file_stride = 0;  // bytes
    std::int64_t memory_stride = 0;
  };
  struct Part {
    std::uint64_t file_offset = 0;
    std::int64_t memory_offset = 0;  // from the box's first element
    std::uint64_t run_bytes = 0;
    std::vector<Dimension> dimensions;  // of the runs
  };
  [[nodiscard]] std::vector<Part> parts(std::uint64_t begin, std::uint64_t end) const;

 private:
  void add_parts(std::size_t dimension, Part at, std::uint64_t begin, std::uint64_t end, std::vector<Part>& all) const;

  std::uint64_t chunk_begin_ = 0;  // file offsets
  std::uint64_t chunk_end_ = 0;
  std::uint64_t file_base_ = 0;
  std::int64_t memory_base_ = 0;
  std::uint64_t run_bytes_ = 0;        // neighbours on both sides
  std::vector<Dimension> dimensions_;  // of the runs, outermost first
  std::vector<std::uint64_t> spans_;   // file bytes from the first to the last of what is within a dimension; one more
  std::size_t row_dimensions_ = 0;     // the first ones of them, which are no neighbours in the file
  std::uint64_t rows_ = 1;
  std::uint64_t row_bytes_ = 0;
};

// `file`: the bytes from offset `file_begin` on. `memory`: the box's first element.
StridedCopy from_memory(const BoxCopy::Part& part, const std::byte* memory, std::byte* file, std::uint64_t file_begin);
StridedCopy to_memory(const BoxCopy::Part& part, const std::byte* file, std::uint64_t file_begin, std::byte* memory);

}  // namespace infercluster::checkpoint
