// SPDX-License-Identifier: Apache-2.0
#include "io/governor.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "base/units.h"
#include "testing/manual_clock.h"

namespace infercluster::io {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint64_t kDevice = 8;

class GovernorTest : public ::testing::Test {
 protected:
  // Bytes that get through in `span` of the clock when requests of `request` bytes come whenever they are let.
  std::uint64_t run(Governor& governor, Priority priority, std::uint64_t request, Clock::Duration span,
                    Clock::Duration foreground_latency = Clock::Duration::zero()) {
    std::uint64_t bytes = 0;
    const Clock::TimePoint end = clock_.now() + span;
    while (clock_.now() < end) {
      if (foreground_latency > Clock::Duration::zero()) governor.foreground_latency(kDevice, foreground_latency, kMiB);
      const Clock::Duration wait = governor.admit(kDevice, priority, request);
      if (wait == Clock::Duration::zero()) bytes += request;
      clock_.advance(std::min<Clock::Duration>(std::max<Clock::Duration>(wait, microseconds(100)), milliseconds(5)));
    }
    return bytes;
  }

  testing::ManualClock clock_;
};

TEST_F(GovernorTest, WithoutLimitsEverythingGoesAtOnce) {
  Governor governor(clock_, {});
  for (const Priority priority : {Priority::foreground, Priority::fill, Priority::drain}) {
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(governor.admit(kDevice, priority, 16 * kMiB), Clock::Duration::zero());
  }
}

TEST_F(GovernorTest, ALimitHoldsOverTime) {
  Governor governor(clock_, {.fill = 100 * kMiB});
  const std::uint64_t bytes = run(governor, Priority::fill, kMiB, seconds(2));
  EXPECT_GE(bytes, 195 * kMiB);
  EXPECT_LE(bytes, 206 * kMiB);  // with the burst of 50 ms
}

TEST_F(GovernorTest, ARequestLargerThanTheBurstPassesAndIsPaidForAfterwards) {
  Governor governor(clock_, {.fill = 20 * kMiB});  // a burst of 1 MiB
  EXPECT_EQ(governor.admit(kDevice, Priority::fill, 16 * kMiB), Clock::Duration::zero());
  const Clock::Duration wait = governor.admit(kDevice, Priority::fill, 16 * kMiB);
  EXPECT_NEAR(std::chrono::duration<double>(wait).count(), 0.8, 0.01);
  clock_.advance(wait);
  EXPECT_EQ(governor.admit(kDevice, Priority::fill, 16 * kMiB), Clock::Duration::zero());
}

TEST_F(GovernorTest, TheAnnouncedWaitIsEnough) {
  Governor governor(clock_, {.drain = 7 * kMiB + 3});
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t bytes = 4096 * static_cast<std::uint64_t>(i % 7 + 1);
    const Clock::Duration wait = governor.admit(kDevice, Priority::drain, bytes);
    if (wait == Clock::Duration::zero()) continue;
    clock_.advance(wait);
    EXPECT_EQ(governor.admit(kDevice, Priority::drain, bytes), Clock::Duration::zero());
  }
}

TEST_F(GovernorTest, ClassesAndDevicesHaveBucketsOfTheirOwn) {
  Governor governor(clock_, {.foreground = kMiB, .fill = kMiB, .drain = kMiB});
  EXPECT_EQ(governor.admit(1, Priority::fill, kMiB), Clock::Duration::zero());
  EXPECT_GT(governor.admit(1, Priority::fill, kMiB), Clock::Duration::zero());
  EXPECT_EQ(governor.admit(2, Priority::fill, kMiB), Clock::Duration::zero());
  EXPECT_EQ(governor.admit(1, Priority::drain, kMiB), Clock::Duration::zero());
  EXPECT_EQ(governor.admit(1, Priority::foreground, kMiB), Clock::Duration::zero());
  EXPECT_GT(governor.admit(1, Priority::foreground, kMiB), Clock::Duration::zero());
}

TEST_F(GovernorTest, FillYieldsToLateForegroundAndComesBack) {
  Governor governor(clock_, {.fill = 100 * kMiB});
  const std::uint64_t quiet = run(governor, Priority::fill, kMiB / 4, seconds(1), milliseconds(1));
  EXPECT_GE(quiet, 95 * kMiB);
  const std::uint64_t late = run(governor, Priority::fill, kMiB / 4, seconds(1), milliseconds(5));
  EXPECT_LE(late, 40 * kMiB);
  EXPECT_GT(late, 0u);
  run(governor, Priority::fill, kMiB / 4, seconds(1), milliseconds(1));
  EXPECT_GE(run(governor, Priority::fill, kMiB / 4, seconds(1), milliseconds(1)), 95 * kMiB);
}

TEST_F(GovernorTest, FillWithoutALimitYieldsToo) {
  Governor governor(clock_, {});
  const std::uint64_t quiet = run(governor, Priority::fill, kMiB, seconds(2), milliseconds(1));
  const std::uint64_t late = run(governor, Priority::fill, kMiB, seconds(1), milliseconds(4));
  EXPECT_LE(late, quiet / 4);
  EXPECT_GT(late, 0u);
}

TEST_F(GovernorTest, ForegroundNeverYields) {
  Governor governor(clock_, {.foreground = 100 * kMiB});
  run(governor, Priority::foreground, kMiB / 4, seconds(1), milliseconds(1));
  EXPECT_GE(run(governor, Priority::foreground, kMiB / 4, seconds(1), milliseconds(50)), 95 * kMiB);
}

TEST_F(GovernorTest, TheLowerClassesNeverStarve) {
  Governor governor(clock_, {.drain = 64 * kMiB});
  run(governor, Priority::drain, kMiB / 4, seconds(1), milliseconds(1));
  run(governor, Priority::drain, kMiB / 4, seconds(5), seconds(1));
  EXPECT_GE(run(governor, Priority::drain, kMiB / 4, seconds(5), seconds(1)), 5 * kMiB);
}

TEST_F(GovernorTest, WithoutForegroundReadsNobodyIsLate) {
  Governor governor(clock_, {.fill = 100 * kMiB});
  run(governor, Priority::fill, kMiB / 4, seconds(1), milliseconds(1));
  run(governor, Priority::fill, kMiB / 4, seconds(1), milliseconds(10));
  run(governor, Priority::fill, kMiB / 4, seconds(2));  // the last late read is forgotten
  EXPECT_GE(run(governor, Priority::fill, kMiB / 4, seconds(1)), 95 * kMiB);
}

TEST_F(GovernorTest, FillAfterADeepForegroundQueueIsFastAgainSoonAfterIt) {
  Governor governor(clock_, {});
  for (int i = 0; i < 500; ++i) {  // a cold load: latency grows as the queue does
    governor.foreground_latency(kDevice, milliseconds(1 + std::min(i, 20)), 4 * kMiB);
    clock_.advance(milliseconds(2));
  }
  std::uint64_t bytes = 0;
  const Clock::TimePoint end = clock_.now() + seconds(2);
  while (clock_.now() < end) {  // the filler's way: it waits as long as it is told, and its speed was never measured
    const Clock::Duration wait = governor.admit(kDevice, Priority::fill, 4 * kMiB);
    if (wait == Clock::Duration::zero()) bytes += 4 * kMiB;
    clock_.advance(std::max<Clock::Duration>(wait, milliseconds(4)));
  }
  EXPECT_GE(bytes, 256 * kMiB);
}

TEST_F(GovernorTest, LatenciesOfDifferentSizesAreNotCompared) {
  Governor governor(clock_, {.fill = 100 * kMiB});
  std::uint64_t bytes = 0;
  for (int i = 0; i < 1000; ++i) {
    governor.foreground_latency(kDevice, i % 2 == 0 ? microseconds(100) : milliseconds(8),
                                i % 2 == 0 ? 4096 : 16 * kMiB);
    if (governor.admit(kDevice, Priority::fill, kMiB / 4) == Clock::Duration::zero()) bytes += kMiB / 4;
    clock_.advance(milliseconds(1));
  }
  EXPECT_GE(bytes, 95 * kMiB);
}

class ManualSignal final : public LatencySignal {
 public:
  std::optional<LatencyReading> read(Clock::TimePoint) override { return LatencyReading{latency, milliseconds(2)}; }
  Clock::Duration latency = milliseconds(1);
};

TEST_F(GovernorTest, ASignalFromElsewhereCountsLikeOwnLatency) {
  Governor governor(clock_, {.fill = 100 * kMiB});
  const auto signal = std::make_shared<ManualSignal>();
  governor.add_signal(signal);
  EXPECT_GE(run(governor, Priority::fill, kMiB / 4, seconds(1)), 95 * kMiB);
  signal->latency = milliseconds(4);
  EXPECT_LE(run(governor, Priority::fill, kMiB / 4, seconds(1)), 40 * kMiB);
  signal->latency = milliseconds(1);
  run(governor, Priority::fill, kMiB / 4, seconds(1));
  EXPECT_GE(run(governor, Priority::fill, kMiB / 4, seconds(1)), 95 * kMiB);
}

TEST_F(GovernorTest, MayBeUsedByManyThreads) {
  Governor governor(steady_clock(), {.fill = kGiB});
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&governor, t] {
      for (int i = 0; i < 2000; ++i) {
        static_cast<void>(governor.admit(static_cast<std::uint64_t>(t % 2), Priority::fill, 4096));
        governor.foreground_latency(1, microseconds(100 + i), 4096);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace infercluster::io
