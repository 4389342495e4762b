// SPDX-License-Identifier: Apache-2.0
#include "base/checked.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace infercluster {
namespace {

TEST(Checked, AdditionStopsAtTheLargestValue) {
  EXPECT_EQ(checked_add<std::uint64_t>(UINT64_MAX - 1, 1), UINT64_MAX);
  EXPECT_FALSE(checked_add<std::uint64_t>(UINT64_MAX, 1));
  EXPECT_FALSE(checked_add<std::uint32_t>(UINT32_MAX, 1));
  EXPECT_FALSE(checked_add<std::uint8_t>(200, 56));
}

TEST(Checked, MultiplicationStopsAtTheLargestValue) {
  EXPECT_EQ(checked_multiply<std::uint64_t>(UINT64_MAX, 1), UINT64_MAX);
  EXPECT_EQ(checked_multiply<std::uint64_t>(UINT64_MAX, 0), 0U);
  EXPECT_FALSE(checked_multiply<std::uint64_t>(std::uint64_t{1} << 32, std::uint64_t{1} << 32));
  EXPECT_EQ(checked_multiply<std::uint64_t>(std::uint64_t{1} << 32, (std::uint64_t{1} << 32) - 1), 0xFFFFFFFF00000000U);
}

TEST(Checked, CastsKeepTheValueOrGiveNothing) {
  EXPECT_EQ((checked_cast<std::uint32_t>(std::uint64_t{UINT32_MAX})), UINT32_MAX);
  EXPECT_FALSE((checked_cast<std::uint32_t>(std::uint64_t{UINT32_MAX} + 1)));
  EXPECT_FALSE((checked_cast<std::int64_t>(UINT64_MAX)));
  EXPECT_FALSE((checked_cast<std::uint64_t>(std::int64_t{-1})));
  EXPECT_FALSE((checked_cast<std::uint8_t>(-1)));
  EXPECT_EQ((checked_cast<std::int8_t>(-128)), -128);
  EXPECT_FALSE((checked_cast<std::int8_t>(128)));
  static_assert(checked_cast<std::uint8_t>(255) == 255);
}

}  // namespace
}  // namespace infercluster
