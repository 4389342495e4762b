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
  ASSERT_TRUE(copier->copy(host_span(from.data(), 100), host_span(to.data(), 100)).ok());
  EXPECT_TRUE(copier->passed(copier->fence().value()).value());
  EXPECT_EQ(from, to);
  EXPECT_TRUE(copier->drain().ok());
  EXPECT_EQ(copier->statistics().bytes, 100U);
}

TEST(HostCopier, CopiesRowsFromOnePitchToAnother) {
  std::vector<std::byte> from(4 * 10);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i);
  std::vector<std::byte> to(3 * 4 + 3, std::byte{255});
  auto copier = make_host_copier();
  ASSERT_TRUE(copier->copy_rows(host_span(from.data() + 2, 33), host_span(to.data(), 15), {4, 3, 10, 4}).ok());
  for (std::size_t row = 0; row < 4; ++row) {
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(to[row * 4 + i], from[2 + row * 10 + i]);
    EXPECT_EQ(to[row * 4 + 3 - (row == 3 ? 1 : 0)], row == 3 ? from[2 + row * 10 + 2] : std::byte{255});
  }
}

}  // namespace
}  // namespace infercluster::memory
