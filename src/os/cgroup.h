// SPDX-License-Identifier: Apache-2.0
// The limits that control groups put on this process: v2, v1, and both at once; in a container or not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace infercluster::os {

struct CgroupMemory {
  std::uint64_t limit = 0;  // bytes; v2: the lesser of memory.max and memory.high
  std::uint64_t used = 0;   // bytes, less page cache that the kernel can reclaim

  [[nodiscard]] std::uint64_t left() const { return limit > used ? limit - used : 0; }
};

// Of this process's memory cgroup and its parents as far as they are visible, the one that leaves the least; nullopt
// when none has a limit. `root` is "/" outside of tests: /proc and the cgroup mounts are read below it.
std::optional<CgroupMemory> cgroup_memory(const std::string& root);

// The tightest CPU quota of the same chain, in processors (1.5: three halves); nullopt when there is none.
std::optional<double> cgroup_processors(const std::string& root);

}  // namespace infercluster::os
