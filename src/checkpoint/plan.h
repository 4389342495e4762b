// SPDX-License-Identifier: Apache-2.0
// Which rank writes which chunk: a pure function of what all ranks hold. Each element of each tensor is written exactly
// once; what several ranks hold is written by the one with the least to write.
//
// Ranks that hold alike form a group, and one text says what. Of a piece with a placement it leaves the box out, since
// that follows: so the ranks of a whole pipeline stage are one group, rank 0 plans by groups, and each rank computes
// which of its own pieces it writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/sharding.h"
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
  // Its placement, where it has one: then `box` is the one that follows from it for this rank, and every rank of the
  // mesh holds its part. Without one the box says it all, which does for some thousand pieces of all ranks together,
  // and for whatever many ranks hold alike.
  std::optional<Sharding> sharding = {};
  // What several ranks hold of it is not alike, and they are refused.
  bool sole = false;

  friend bool operator==(const Piece&, const Piece&) = default;
};
using Pieces = std::vector<Piece>;  // of one rank

// Bytes of a box; errors where the whole tensor has no whole number of bytes, or more than 2^64, and where the
// placement does not fit the tensor.
Result<std::uint64_t> check_piece(const Piece& piece);
// What a rank can tell of its own pieces: each is in order, and its box is that of its placement.
Status check_held(const Pieces& pieces, std::uint64_t rank);

// As bytes, the same for equal pieces; boxes are left out where there is a placement, and come back without dimensions.
std::string encode_pieces(const Pieces& pieces);
Result<Pieces> decode_pieces(std::string_view bytes);  // errors: corrupt, and a mesh's
// 32 hexadecimal digits that stand for what encode_pieces() gave.
std::string digest_of(std::string_view encoded_pieces);

struct Group {
  std::string digest;
  Pieces pieces;                     // as decode_pieces() gives them
  std::vector<std::uint64_t> ranks;  // ascending
};

// Who writes a piece of a group: a rank, or one of these.
inline constexpr std::uint64_t kByPlacement = UINT64_MAX;    // one of each box's holders: see own_share()
inline constexpr std::uint64_t kElsewhere = UINT64_MAX - 1;  // nobody of this group, and it does not say who
using Writers = std::vector<std::uint64_t>;                  // one per piece of the group

struct Plan {
  std::string hash;              // 32 hexadecimal digits of all that went in
  std::vector<Writers> writers;  // per group
  std::uint64_t copies = 0;      // tensors of which another mesh holds a copy that nobody writes
  std::string copy;              // one of them
};

// `groups` have all ranks of 0 <= rank < world, each in one. Refused (invalid_argument, by the tensor's name, ranks and
// boxes): boxes outside of their tensors, a tensor of two dtypes or shapes, with and without a placement, one that a
// rank names twice with the same box or with placements, overlaps that are not equal, holes, and ranks of a placement's
// mesh that do not hold it.
Result<Plan> plan_writes(std::span<const Group> groups, std::uint64_t world);

struct OwnShare {
  std::vector<std::size_t> writes;  // which of its pieces the rank writes, ascending
  // Who writes what the rank holds, ascending; nothing where that is not known of some.
  std::optional<std::vector<std::uint64_t>> sources;
};
// Linear in the rank's pieces (sorted by size), whatever the world.
OwnShare own_share(const Pieces& pieces, std::uint64_t rank, const Writers& writers);

// What rank 0 tells the others.
std::string encode_plan(const Plan& plan, std::span<const Group> groups);
struct OwnPlan {
  std::string hash;
  Writers writers;  // of the group with this digest
};
Result<OwnPlan> decode_plan(std::string_view bytes, std::string_view digest, std::size_t pieces);  // error corrupt

std::string to_string(const Box& box);  // "[0:5, 3:7]"

}  // namespace infercluster::checkpoint
