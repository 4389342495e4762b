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

}  // namespace
}  // namespace infercluster
