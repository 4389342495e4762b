// SPDX-License-Identifier: Apache-2.0
#include "initiator/backoff.h"

#include <gtest/gtest.h>

#include <set>

#include "testing/manual_clock.h"

namespace infercluster::initiator {
namespace {

using std::chrono::milliseconds;

constexpr Backoff::Options kOptions{.first = milliseconds(20), .most = milliseconds(2000)};

TEST(Backoff, TheFirstAttemptIsAtOnceAndDelaysDoubleToTheirBound) {
  testing::ManualClock clock;
  Backoff backoff(kOptions, 1);
  EXPECT_EQ(backoff.next(clock.now()), clock.now());
  Clock::Duration expected = kOptions.first;
  for (int i = 0; i < 100; ++i) {
    const Clock::Duration delay = backoff.next(clock.now()) - clock.now();
    EXPECT_GE(delay, expected / 2) << i;
    EXPECT_LE(delay, expected) << i;
    clock.advance(delay);
    expected = std::min<Clock::Duration>(2 * expected, kOptions.most);
  }
}

TEST(Backoff, OnlyAConnectionOfUseBeginsAnew) {
  testing::ManualClock clock;
  Backoff backoff(kOptions, 1);
  for (int i = 0; i < 10; ++i) (void)backoff.next(clock.now());
  EXPECT_GE(backoff.next(clock.now()) - clock.now(), kOptions.most / 2);
  backoff.proved();
  EXPECT_EQ(backoff.next(clock.now()), clock.now());
  EXPECT_LE(backoff.next(clock.now()) - clock.now(), kOptions.first);
}

TEST(Backoff, HostsThatLostOneTargetComeBackAtDifferentTimes) {
  const testing::ManualClock clock;
  std::set<Clock::TimePoint> times;
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    Backoff backoff(kOptions, seed);
    for (int i = 0; i < 8; ++i) (void)backoff.next(clock.now());
    times.insert(backoff.next(clock.now()));
  }
  EXPECT_GT(times.size(), 60U);
  EXPECT_GT(*times.rbegin() - *times.begin(), kOptions.most / 4);
}

}  // namespace
}  // namespace infercluster::initiator
