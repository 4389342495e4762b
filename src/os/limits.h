// SPDX-License-Identifier: Apache-2.0
// What this process may use: memory, locked memory, huge pages, processors. All figures are bytes unless named
// otherwise.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace infercluster::os {

struct MemoryLimits {
  std::uint64_t total = 0;      // MemTotal
  std::uint64_t available = 0;  // MemAvailable
  // Of this process's cgroup (v2 or v1) and its parents, the one that leaves the least: its limit (v2: the lesser of
  // memory.max and memory.high), and its usage less its reclaimable page cache. nullopt: none has a limit.
  std::optional<std::uint64_t> cgroup_limit;
  std::uint64_t cgroup_used = 0;

  // What can still be taken: the lesser of `available` and what the cgroup leaves.
  [[nodiscard]] std::uint64_t free() const;
};
// `root` is "/" outside of tests: /proc and /sys are read below it.
MemoryLimits memory_limits(const std::string& root = "/");

std::optional<std::uint64_t> locked_memory_limit();  // RLIMIT_MEMLOCK; nullopt: unlimited

enum class HugePages : std::uint8_t { always, on_request, never };
HugePages transparent_huge_pages();        // /sys/kernel/mm/transparent_hugepage/enabled
std::uint64_t free_explicit_huge_pages();  // bytes in free 2 MiB hugetlbfs pages

unsigned usable_processors();  // sched_getaffinity, and no more than the cgroup's CPU quota rounded up
unsigned numa_node_count();
std::uint64_t peak_resident_bytes();  // VmHWM of this process
std::uint64_t resident_bytes();       // VmRSS

}  // namespace infercluster::os
