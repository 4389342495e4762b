// SPDX-License-Identifier: Apache-2.0
#include "memory/copier.h"

#include <gtest/gtest.h>

#include <vector>

namespace infercluster::memory {
namespace {

TEST(HostCopier, CopiesAtOnce) {
  const std::vector<std::byte> from(100, std::byte{9});
  std::vector<std::byte> to(100);
  auto copier = make_host_copier();
  ASSERT_TRUE(copier->copy(from.data(), {Kind::host, -1, reinterpret_cast<std::uintptr_t>(to.data()), to.size()}).ok());
  EXPECT_TRUE(copier->passed(copier->fence().value()).value());
  EXPECT_EQ(from, to);
  EXPECT_TRUE(copier->drain().ok());
}

}  // namespace
}  // namespace infercluster::memory
