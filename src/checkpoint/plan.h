// SPDX-License-Identifier: Apache-2.0
// Which rank writes which chunk: a pure function of what all ranks hold. Each element of each tensor is written exactly
// once; what several ranks hold is written by the one with the least to write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "manifest/index.h"
#include "safetensors/dtype.h"

namespace infercluster::checkpoint {

using manifest::Box;

// A part of a tensor that a rank holds. A box without elements holds nothing, wherever it begins.
struct Piece {
  std::string tensor;
  safetensors::Dtype dtype = safetensors::Dtype::u8;
  std::vector<std::uint64_t> shape;  // of the whole tensor
  Box box;

  friend bool operator==(const Piece&, const Piece&) = default;
};
using Pieces = std::vector<Piece>;  // of one rank

struct Plan {
  std::vector<std::vector<std::size_t>> writes;  // per rank: which of its pieces it writes, ascending
  std::vector<std::uint64_t> bytes;              // per rank
  std::string hash;                              // 32 hexadecimal digits of all that went in
};

// Refused (invalid_argument, by the tensor's name, ranks and boxes): boxes outside of their tensors, a tensor of two
// dtypes or shapes, one that a rank names twice with the same box, overlaps that are not equal, and holes.
Result<Plan> plan_writes(std::span<const Pieces> ranks);

// Bytes of a box; errors where the whole tensor has no whole number of bytes, or more than 2^64.
Result<std::uint64_t> check_piece(const Piece& piece);

std::string encode_pieces(const Pieces& pieces);
Result<Pieces> decode_pieces(std::string_view bytes);  // error corrupt

std::string to_string(const Box& box);  // "[0:5, 3:7]"

}  // namespace infercluster::checkpoint
