// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <gtest/gtest.h>

#include "testing/manual_clock.h"

namespace infercluster {
namespace {

using namespace std::chrono_literals;

TEST(SteadyClock, IsOneAndNeverGoesBack) {
  const Clock& clock = steady_clock();
  EXPECT_EQ(&clock, &steady_clock());
  const auto first = clock.now();
  const auto second = clock.now();
  EXPECT_GE(second, first);
  EXPECT_GT(first.time_since_epoch(), 0ns);
}

TEST(ManualClock, MovesOnlyByHand) {
  testing::ManualClock clock;
  const auto start = clock.now();
  EXPECT_EQ(clock.now(), start);
  clock.advance(1500ms);
  EXPECT_EQ(seconds_between(start, clock.now()), 1.5);
}

}  // namespace
}  // namespace infercluster
