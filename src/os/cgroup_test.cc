// SPDX-License-Identifier: Apache-2.0
#include "os/cgroup.h"

#include <gtest/gtest.h>

#include <string>

#include "testing/temp_dir.h"

namespace infercluster::os {
namespace {

using testing::TempDir;

constexpr const char* kUnifiedMount = "31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n";
constexpr const char* kMemoryMount = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";

void write_group(const TempDir& root, const std::string& folder, const std::string& limit, const std::string& usage,
                 const std::string& statistics = "") {
  const bool unified = folder.find("/memory") == std::string::npos;
  root.write(folder + (unified ? "/memory.max" : "/memory.limit_in_bytes"), limit + "\n");
  root.write(folder + (unified ? "/memory.current" : "/memory.usage_in_bytes"), usage + "\n");
  root.write(folder + "/memory.stat", statistics);
}

TEST(CgroupMemory, NothingIsKnownInAnEmptyRoot) {
  const TempDir root;
  EXPECT_FALSE(cgroup_memory(root.path().string()));
  EXPECT_FALSE(cgroup_processors(root.path().string()));
}

TEST(CgroupMemory, V2TakesTheGroupAndItsReclaimableCache) {
  const TempDir root;
  root.write("proc/self/cgroup", "0::/user/job\n");
  root.write("proc/self/mountinfo", kUnifiedMount);
  write_group(root, "sys/fs/cgroup/user/job", "1000", "700",
              "anon 100\nfile 600\ninactive_file 150\nactive_file 50\nworkingset_refault_file 9\n");
  const auto memory = cgroup_memory(root.path().string());
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->limit, 1000U);
  EXPECT_EQ(memory->used, 500U);
  EXPECT_EQ(memory->left(), 500U);
}

TEST(CgroupMemory, V2ParentsCountAndMaxIsNoLimit) {
  const TempDir root;
  root.write("proc/self/cgroup", "0::/user/job\n");
  root.write("proc/self/mountinfo", kUnifiedMount);
  write_group(root, "sys/fs/cgroup/user/job", "max", "10");
  EXPECT_FALSE(cgroup_memory(root.path().string()));
  write_group(root, "sys/fs/cgroup/user", "5000", "4900");
  EXPECT_EQ(cgroup_memory(root.path().string())->limit, 5000U);
  // A parent that others have filled leaves less than the group's own lower limit.
  write_group(root, "sys/fs/cgroup/user/job", "1000", "10");
  EXPECT_EQ(cgroup_memory(root.path().string())->left(), 100U);
  write_group(root, "sys/fs/cgroup/user", "5000", "100");
  EXPECT_EQ(cgroup_memory(root.path().string())->left(), 990U);
}

TEST(CgroupMemory, V2HighIsALimitToo) {
  const TempDir root;
  root.write("proc/self/cgroup", "0::/job\n");
  root.write("proc/self/mountinfo", kUnifiedMount);
  write_group(root, "sys/fs/cgroup/job", "1000", "0");
  root.write("sys/fs/cgroup/job/memory.high", "800\n");
  EXPECT_EQ(cgroup_memory(root.path().string())->limit, 800U);
  root.write("sys/fs/cgroup/job/memory.high", "max\n");
  EXPECT_EQ(cgroup_memory(root.path().string())->limit, 1000U);
}

TEST(CgroupMemory, V1TakesItsOwnFilesAndTotals) {
  const TempDir root;
  root.write("proc/self/cgroup", "5:devices:/x\n4:cpuset,memory:/user/job\n0::/\n");
  root.write("proc/self/mountinfo", kMemoryMount);
  write_group(root, "sys/fs/cgroup/memory/user/job", "1000", "700",
              "inactive_file 1\nactive_file 1\ntotal_inactive_file 150\ntotal_active_file 50\n");
  write_group(root, "sys/fs/cgroup/memory/user", "9223372036854771712", "700");
  const auto memory = cgroup_memory(root.path().string());
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->limit, 1000U);
  EXPECT_EQ(memory->used, 500U);
}

TEST(CgroupMemory, InHybridSetUpsTheHierarchyThatHasTheControllerDecides) {
  const TempDir root;
  root.write("proc/self/cgroup", "4:memory:/job\n0::/\n");
  root.write("proc/self/mountinfo",
             std::string(kMemoryMount) + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  root.write("sys/fs/cgroup/unified/cgroup.procs", "");
  write_group(root, "sys/fs/cgroup/memory/job", "1000", "0");
  EXPECT_EQ(cgroup_memory(root.path().string())->limit, 1000U);
}

TEST(CgroupMemory, InAContainerTheMountsRootIsTheOwnGroup) {
  const TempDir root;
  // The path is the host's, and does not exist in here.
  root.write("proc/self/cgroup", "0::/kubepods/pod1/abc\n");
  root.write("proc/self/mountinfo", kUnifiedMount);
  write_group(root, "sys/fs/cgroup", "1000", "100");
  EXPECT_EQ(cgroup_memory(root.path().string())->left(), 900U);
}

TEST(CgroupMemory, AMountOfTheGroupItselfIsNotWalkedTwice) {
  const TempDir root;
  root.write("proc/self/cgroup", "4:memory:/docker/abc/inner\n");
  root.write("proc/self/mountinfo", "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  write_group(root, "sys/fs/cgroup/memory/inner", "500", "100");
  write_group(root, "sys/fs/cgroup/memory", "1000", "900");
  EXPECT_EQ(cgroup_memory(root.path().string())->left(), 100U);
  write_group(root, "sys/fs/cgroup/memory", "1000", "0");
  EXPECT_EQ(cgroup_memory(root.path().string())->limit, 500U);
}

TEST(CgroupMemory, AMountOfAnotherPartOfTheTreeIsTakenAtItsRoot) {
  const TempDir root;
  root.write("proc/self/cgroup", "0::/\n");  // a cgroup namespace, and a mount from outside of it
  root.write("proc/self/mountinfo", "31 23 0:28 /../.. /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n");
  write_group(root, "sys/fs/cgroup", "1000", "1");
  EXPECT_EQ(cgroup_memory(root.path().string())->limit, 1000U);
}

TEST(CgroupMemory, OverTheLimitNothingIsLeft) {
  EXPECT_EQ((CgroupMemory{.limit = 10, .used = 11}.left()), 0U);
}

TEST(CgroupProcessors, QuotasOfBothVersions) {
  const TempDir v2;
  v2.write("proc/self/cgroup", "0::/job\n");
  v2.write("proc/self/mountinfo", kUnifiedMount);
  v2.write("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  EXPECT_FALSE(cgroup_processors(v2.path().string()));
  v2.write("sys/fs/cgroup/job/cpu.max", "150000 100000\n");
  EXPECT_EQ(cgroup_processors(v2.path().string()), 1.5);
  const TempDir v1;
  v1.write("proc/self/cgroup", "2:cpu,cpuacct:/job\n");
  v1.write("proc/self/mountinfo", "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpuacct,cpu\n");
  v1.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  v1.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(cgroup_processors(v1.path().string()));
  v1.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n");
  v1.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_processors(v1.path().string()), 4);
}

}  // namespace
}  // namespace infercluster::os
