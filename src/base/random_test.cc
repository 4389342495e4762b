// SPDX-License-Identifier: Apache-2.0
#include "base/random.h"

#include <gtest/gtest.h>

#include <array>

namespace infercluster {
namespace {

TEST(Random, EveryFillIsAnother) {
  std::array<std::byte, 64> first{};
  std::array<std::byte, 64> second{};
  fill_random(first);
  fill_random(second);
  EXPECT_NE(first, second);
  EXPECT_NE(first, (std::array<std::byte, 64>{}));
  fill_random({});
}

TEST(Random, HexHasTwoDigitsAByte) {
  const std::string first = random_hex(8);
  EXPECT_EQ(first.size(), 16U);
  EXPECT_EQ(first.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(first, random_hex(8));
  EXPECT_EQ(random_hex(0), "");
}

}  // namespace
}  // namespace infercluster
