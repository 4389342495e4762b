// SPDX-License-Identifier: Apache-2.0
// Ranks in n dimensions, as torch's DeviceMesh has them. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/result.h"
#include "exchange/wire.h"

namespace infercluster::checkpoint {

// Each rank at most once. Small where the ranks lie regularly (a first one, and a stride per dimension), whatever its
// size; else a list. Immutable; equal meshes are equal however they were made.
class Mesh {
 public:
  // `ranks`: row-major. Errors (invalid_argument): not as many as the shape says, none, one twice, more than
  // exchange::kRanksMax, a rank from there on, more than 16 dimensions.
  static Result<Mesh> of(std::vector<std::uint64_t> shape, std::vector<std::uint64_t> ranks);
  // The rank at coordinates c is first + c[0] * strides[0] + ...
  static Result<Mesh> regular(std::vector<std::uint64_t> shape, std::uint64_t first,
                              std::vector<std::uint64_t> strides);

  [[nodiscard]] const std::vector<std::uint64_t>& shape() const { return shape_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  // 0 <= position < size(), row-major.
  [[nodiscard]] std::uint64_t rank_at(std::uint64_t position) const;
  [[nodiscard]] std::optional<std::uint64_t> position_of(std::uint64_t rank) const;

  void encode(exchange::Writer& out) const;
  static Result<Mesh> decode(exchange::Reader& in);  // errors: corrupt, and those of of()

  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  Mesh() = default;

  std::vector<std::uint64_t> shape_;
  std::uint64_t size_ = 0;
  // Regular: each stride is beyond what the smaller ones reach together, so that a rank has one position at most; those
  // of dimensions of size 1 are 0.
  std::uint64_t first_ = 0;
  std::vector<std::uint64_t> strides_;
  std::vector<std::size_t> by_stride_;  // dimensions larger than 1, by stride, the largest first
  // Else:
  std::vector<std::uint64_t> ranks_;                                // row-major
  std::vector<std::pair<std::uint64_t, std::uint64_t>> positions_;  // rank and position, by rank
};

}  // namespace infercluster::checkpoint
