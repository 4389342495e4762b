// SPDX-License-Identifier: Apache-2.0
// The index of one writer of a checkpoint: its segments with their checksums, and which chunk of which tensor lies
// where in them. Pure: no I/O.
//
// Format "infercluster.checkpoint.index", version 1: one JSON object whose last member is its own checksum, as in
// manifest/commit.h. A segment's "crc32c" is 8 hexadecimal digits for each block of 64 KiB of the file, in order; the
// last block may be short.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "safetensors/dtype.h"

namespace infercluster::manifest {

inline constexpr std::uint64_t kBlockBytes = std::uint64_t{64} << 10;
inline constexpr std::uint64_t kIndexBytesMax = std::uint64_t{512} << 20;

struct Segment {
  std::string name;  // a plain file name beside the index: a safetensors file
  std::uint64_t bytes = 0;
  std::vector<std::uint32_t> block_crcs;  // of each kBlockBytes from file offset 0

  friend bool operator==(const Segment&, const Segment&) = default;
};

// Where a part of a tensor lies in the whole: per dimension the first element and how many.
struct Box {
  std::vector<std::uint64_t> offsets;
  std::vector<std::uint64_t> lengths;

  friend bool operator==(const Box&, const Box&) = default;
};
// The box that is all of a tensor of this shape.
Box whole_box(const std::vector<std::uint64_t>& shape);

struct Chunk {
  std::string tensor;
  safetensors::Dtype dtype = safetensors::Dtype::u8;
  std::vector<std::uint64_t> shape;  // of the whole tensor
  Box box;
  std::uint64_t segment = 0;  // which of the index's segments
  std::uint64_t begin = 0;    // file offset; the chunk lies there row-major
  std::uint64_t bytes = 0;    // follows from dtype and box
  // The writer's number of the content, where it gave one: as long as it stays, the content does.
  std::optional<std::uint64_t> generation = {};

  friend bool operator==(const Chunk&, const Chunk&) = default;
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

struct Index {
  std::uint64_t step = 0;
  std::uint64_t epoch = 0;
  std::string save_id;
  std::uint64_t node = 0;  // the writer's number
  std::vector<Segment> segments;
  std::vector<Chunk> chunks;
  Metadata metadata;  // what the caller adds, in its order; keys are unique

  friend bool operator==(const Index&, const Index&) = default;
};

// Errors as parse_commit's. Whatever parses is consistent in itself: boxes lie in their tensors, chunks in their
// segments, and each segment has a checksum per block.
Result<Index> parse_index(std::string_view text);
Result<std::string> build_index(const Index& index);

}  // namespace infercluster::manifest
