// SPDX-License-Identifier: Apache-2.0
// How the pieces that a rank writes lie in its segment, a safetensors file that stock readers open. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/plan.h"
#include "manifest/index.h"

namespace infercluster::checkpoint {

struct Placement {
  std::size_t piece = 0;    // of those given
  std::uint64_t begin = 0;  // file offset
  std::uint64_t bytes = 0;
};

struct Layout {
  std::string header;  // what lies before the data
  std::vector<Placement> placements;
  std::vector<manifest::Chunk> chunks;  // one per placement, in segment 0
  std::uint64_t bytes = 0;              // of the file
};

// `writes`: which of the pieces. A piece that is a whole tensor keeps its name in the file; a part of one is called
// "NAME[0:5, 3:7]".
Result<Layout> lay_out(const Pieces& pieces, std::span<const std::size_t> writes);

}  // namespace infercluster::checkpoint
