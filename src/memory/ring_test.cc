// SPDX-License-Identifier: Apache-2.0
#include "memory/ring.h"

#include <gtest/gtest.h>

#include <set>

namespace infercluster::memory {
namespace {

TEST(Ring, LendsEachSlotOnceUntilItIsGivenBack) {
  Ring ring = Ring::create(8192, 3).value();
  std::set<std::uintptr_t> places;
  for (int i = 0; i < 3; ++i) places.insert(ring.span(ring.take().value()).address);
  EXPECT_EQ(places.size(), 3U);
  EXPECT_FALSE(ring.take());
  ring.give_back(1);
  EXPECT_EQ(ring.available(), 1U);
  EXPECT_EQ(ring.take(), 1U);
}

TEST(RingDeathTest, GivingBackTwiceIsAProgrammersError) {
  Ring ring = Ring::create(4096, 1).value();
  EXPECT_DEATH(ring.give_back(0), "lent_");
}

}  // namespace
}  // namespace infercluster::memory
