// SPDX-License-Identifier: Apache-2.0
// Which rank of a node reads which blocks of a checkpoint, where several ranks want the same ones. Pure: each rank
// computes it from what all of them want.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/restore_plan.h"

namespace infercluster::checkpoint {

// Blocks that one rank wants, by segment: ascending and disjoint.
using WantedBlocks = std::map<SegmentId, std::vector<Window>>;

WantedBlocks wanted_blocks(const std::vector<SegmentReads>& reads);
std::string encode_wanted(const WantedBlocks& wanted);
Result<WantedBlocks> decode_wanted(std::string_view bytes);  // error corrupt

struct PlannedRead {
  SegmentId segment;
  Window window;
};

// Read by one of those who want parts of it, and handed on to the others.
struct SharedRead {
  SegmentId segment;
  Window window;
  std::size_t owner = 0;             // of the node's ranks, by their order
  std::vector<std::size_t> wanting;  // the owner among them, ascending
};

struct NodePlan {
  std::vector<std::vector<PlannedRead>> alone;  // per rank
  std::vector<SharedRead> shared;               // in the order of the files
  [[nodiscard]] std::uint64_t bytes() const;    // that the ranks read together
};

// Each block that anybody wants is read by exactly one who does: what one alone wants by itself, the rest by the one
// who has least to read. Neighbours of few bytes are read in one window, whoever wants them.
NodePlan plan_for_node(const std::vector<WantedBlocks>& wanted, std::uint64_t window_bytes);

}  // namespace infercluster::checkpoint
