// SPDX-License-Identifier: Apache-2.0
#include "os/numa.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <cerrno>

#include "base/units.h"
#include "os/limits.h"
#include "os/memory_map.h"
#include "testing/child.h"

namespace infercluster::os {
namespace {

TEST(Numa, ThereIsAtLeastOneNode) {
  EXPECT_GE(numa_node_count(), 1U);
}

TEST(Numa, TheFirstNodeCanBePreferredWhereTheKernelLetsUs) {
  const auto mapping = Mapping::create(kMiB, {});
  ASSERT_TRUE(mapping);
  const Status status = prefer_numa_node(mapping->data(), 0);
  if (!status) {
    EXPECT_EQ(status.error().code(), ErrorCode::permission) << status.error().to_string();
  }
  EXPECT_TRUE(mapping->populate(0, kMiB));
}

TEST(Numa, ContainersThatRefuseItGiveAnError) {
  const auto mapping = Mapping::create(kMiB, {});
  ASSERT_TRUE(mapping);
  if (!prefer_numa_node(mapping->data(), 0)) GTEST_SKIP() << "refused already";
  EXPECT_EQ(testing::in_child([&] {
              testing::refuse({.number = SYS_mbind, .system_errno = EPERM});
              const Status status = prefer_numa_node(mapping->data(), 0);
              // Without NUMA in the kernel nothing is asked for, and nothing refused.
              return status.ok() ? numa_node_count() > 1 : status.error().code() != ErrorCode::permission;
            }),
            0);
}

TEST(Numa, ANodeThatIsNotThereIsRefused) {
  const auto mapping = Mapping::create(kMiB, {});
  ASSERT_TRUE(mapping);
  EXPECT_EQ(prefer_numa_node(mapping->data(), 100'000).error().code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace infercluster::os
