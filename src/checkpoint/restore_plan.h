// SPDX-License-Identifier: Apache-2.0
// What a restore reads and where it goes. Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "checkpoint/box_copy.h"
#include "checkpoint/restore.h"

namespace infercluster::checkpoint {

// A run of checksum blocks of one segment, read in one request.
struct Window {
  std::uint64_t begin = 0;  // file offset, a multiple of manifest::kBlockBytes
  std::uint64_t end = 0;    // a multiple of it too, or the file's end
};

struct TargetCopy {
  BoxCopy box;
  const Target* target = nullptr;
};

struct SegmentId {
  std::uint64_t index = 0;    // of Checkpoint::indexes()
  std::uint64_t segment = 0;  // of its segments
  // NOLINTNEXTLINE(modernize-use-nullptr): what clang-tidy 14 makes of a defaulted comparison
  friend auto operator<=>(const SegmentId&, const SegmentId&) = default;
};

struct SegmentReads {
  SegmentId id;
  const manifest::Segment* segment = nullptr;
  std::vector<TargetCopy> copies;  // by chunk_begin()
  std::vector<Window> windows;     // ascending, disjoint: the blocks that the copies touch, and no other
};

// Only segments that are needed. `targets` fit the checkpoint's tensors, and are referred to.
Result<std::vector<SegmentReads>> plan_reads(const Checkpoint& checkpoint, std::span<const Target> targets,
                                             std::uint64_t window_bytes);

// Every block of every segment, for no target.
std::vector<SegmentReads> plan_whole_reads(const Checkpoint& checkpoint, std::uint64_t window_bytes);

}  // namespace infercluster::checkpoint
