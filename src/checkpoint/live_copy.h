// SPDX-License-Identifier: Apache-2.0
// Copies memory that its owner changes meanwhile, under a generation that says whether it did (a sequence lock): even
// at rest, odd while the content changes. The owner never waits.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace infercluster::checkpoint {

// As it is at this moment.
std::uint64_t load_generation(const std::uint64_t& generation);
inline bool is_at_rest(std::uint64_t generation) {
  return generation % 2 == 0;
}

struct LiveRange {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t bytes = 0;
};

// All ranges, again and again until nothing changed meanwhile. Returns the generation of what was copied. Error
// changed: the owner kept changing it for so long.
Result<std::uint64_t> copy_live(std::span<const LiveRange> ranges, const std::uint64_t& generation,
                                std::chrono::nanoseconds patience);

}  // namespace infercluster::checkpoint
