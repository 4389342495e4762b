// SPDX-License-Identifier: Apache-2.0
#include "os/limits.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <cstring>
#include <memory>

#include "base/units.h"
#include "testing/temp_dir.h"

namespace infercluster::os {
namespace {

using testing::TempDir;

TEST(MemoryLimits, AreReadBelowTheRoot) {
  const TempDir root;
  root.write("proc/meminfo", "MemTotal:       1000 kB\nMemFree:         10 kB\nMemAvailable:    500 kB\n");
  const MemoryLimits machine = memory_limits(root.path().string());
  EXPECT_EQ(machine.total, 1000 * kKiB);
  EXPECT_EQ(machine.available, 500 * kKiB);
  EXPECT_FALSE(machine.cgroup_limit);
  EXPECT_EQ(machine.free(), 500 * kKiB);

  root.write("proc/self/cgroup", "0::/job\n");
  root.write("proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  root.write("sys/fs/cgroup/job/memory.max", "409600\n");
  root.write("sys/fs/cgroup/job/memory.current", "102400\n");
  root.write("sys/fs/cgroup/job/memory.stat", "inactive_file 2400\n");
  const MemoryLimits grouped = memory_limits(root.path().string());
  EXPECT_EQ(grouped.cgroup_limit, 409600U);
  EXPECT_EQ(grouped.cgroup_used, 100000U);
  EXPECT_EQ(grouped.free(), 309600U);
}

TEST(MemoryLimits, FreeIsTheLesserAndNeverWraps) {
  MemoryLimits limits{.total = 100, .available = 50, .cgroup_limit = 1000, .cgroup_used = 10};
  EXPECT_EQ(limits.free(), 50U);
  limits.cgroup_limit = 30;
  EXPECT_EQ(limits.free(), 20U);
  limits.cgroup_used = 31;
  EXPECT_EQ(limits.free(), 0U);
}

TEST(MemoryLimits, OfThisMachineAreSane) {
  const MemoryLimits limits = memory_limits();
  EXPECT_GT(limits.total, 64 * kMiB);
  EXPECT_LE(limits.available, limits.total);
  EXPECT_GT(limits.free(), 0U);
}

TEST(LockedMemory, FollowsTheLimit) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit tight{.rlim_cur = 64 * kKiB, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &tight), 0);
  EXPECT_EQ(locked_memory_limit(), 64 * kKiB);
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &before), 0);
  EXPECT_EQ(locked_memory_limit().has_value(), before.rlim_cur != RLIM_INFINITY);
}

TEST(Processors, FollowTheAffinity) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_GE(usable_processors(), 1U);
  EXPECT_LE(usable_processors(), static_cast<unsigned>(CPU_COUNT(&before)));
  cpu_set_t one;
  CPU_ZERO(&one);
  for (unsigned cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(usable_processors(), 1U);
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(HugePages, TheirFreeMemoryIsWholePages) {
  EXPECT_EQ(free_explicit_huge_pages() % (2 * kMiB), 0U);
}

TEST(ResidentBytes, GrowWithWhatIsTouched) {
  const std::uint64_t before = resident_bytes();
  ASSERT_GT(before, 0U);
  constexpr std::size_t kBytes = 32 * kMiB;
  const std::unique_ptr<char[]> memory(new char[kBytes]);
  std::memset(memory.get(), 1, kBytes);
  EXPECT_GE(resident_bytes(), before + kBytes / 2);
  EXPECT_GE(peak_resident_bytes(), before + kBytes / 2);
  EXPECT_EQ(memory[kBytes - 1], 1);
}

}  // namespace
}  // namespace infercluster::os
