// SPDX-License-Identifier: Apache-2.0
#include "io/drain_governor.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sys/sysmacros.h>
#include <algorithm>
#include <array>
#include <fstream>

#include "base/units.h"
#include "testing/manual_clock.h"
#include "testing/temp_dir.h"

namespace infercluster::io {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr double kMebi = 1024 * 1024;

// A device of 1,000 MiB/s whose foreground latency grows with what the drain takes of it.
class SimulatedDevice final : public LatencySignal {
 public:
  std::optional<LatencyReading> read(Clock::TimePoint) override {
    if (!active) return std::nullopt;
    return LatencyReading{Clock::Duration(static_cast<std::int64_t>(1e6 * (0.2 + latency_ms(drain_rate)))),
                          milliseconds(2)};
  }
  // Of a drain of so many MiB/s: at 600 MiB/s the foreground is at its target of 2 ms.
  [[nodiscard]] double latency_ms(double rate) const { return scale * 1.2 * rate / (1000 - std::min(rate, 990.0)); }

  bool active = false;
  double scale = 1;
  double drain_rate = 0;  // MiB/s, of late
};

class DrainGovernorTest : public ::testing::Test {
 protected:
  // The drain's mean rate, in MiB/s, over `span`: two threads' worth of requests of 8 MiB, as fast as the device is.
  double drain(Clock::Duration span) {
    const Clock::TimePoint begin = clock_.now();
    double written = 0;
    double recent = 0;
    Clock::TimePoint measured = begin;
    while (clock_.now() - begin < span) {
      const DrainGovernor::Turn turn = governor_.ask(8 * kMiB);
      if (turn.wait > Clock::Duration::zero()) {
        clock_.advance(turn.wait);
      } else {
        largest_ = std::max(largest_, turn.request_bytes);
        const double mebibytes = static_cast<double>(turn.request_bytes) / kMebi;
        written += mebibytes;
        recent += mebibytes;
        clock_.advance(microseconds(static_cast<std::int64_t>(mebibytes * 1000)));
      }
      if (clock_.now() - measured >= milliseconds(100)) {
        device_->drain_rate = recent / seconds_between(measured, clock_.now());
        measured = clock_.now();
        recent = 0;
      }
    }
    return written / seconds_between(begin, clock_.now());
  }

  testing::ManualClock clock_;
  std::shared_ptr<SimulatedDevice> device_ = std::make_shared<SimulatedDevice>();
  DrainGovernor governor_{clock_, {}, {device_}};
  std::uint64_t largest_ = 0;
};

TEST_F(DrainGovernorTest, WhenNobodyWaitsItIsAsFastAsTheDevice) {
  clock_.advance(seconds(1));
  EXPECT_GT(drain(seconds(2)), 950);
  EXPECT_EQ(largest_, 8 * kMiB);
  EXPECT_EQ(governor_.report().requests_cut, 0U);
  EXPECT_EQ(governor_.report().throttled_seconds, 0);
}

TEST_F(DrainGovernorTest, ItHoldsTheTargetNearTheBestRateThatDoes) {
  clock_.advance(seconds(1));
  drain(seconds(2));
  device_->active = true;
  drain(seconds(2));
  largest_ = 0;
  const double rate = drain(seconds(10));
  EXPECT_GT(rate, 0.8 * 600);
  EXPECT_LT(rate, 1.05 * 600);
  EXPECT_LE(largest_, kMiB);
  EXPECT_GT(governor_.report().requests_cut, 0U);
  EXPECT_GT(governor_.report().throttled_seconds, 1);
}

// It has never seen the device without the foreground.
TEST_F(DrainGovernorTest, ItFindsThatRateAlsoWhenSomebodyWaitsFromTheBeginning) {
  clock_.advance(seconds(1));
  device_->active = true;
  drain(seconds(3));
  const double rate = drain(seconds(10));
  EXPECT_GT(rate, 0.8 * 600);
  EXPECT_LT(rate, 1.05 * 600);
}

TEST_F(DrainGovernorTest, AStallThatItDidNotCauseCostsItOneStep) {
  clock_.advance(seconds(1));
  device_->active = true;
  drain(seconds(5));
  device_->scale = 100;
  drain(milliseconds(300));
  device_->scale = 1;
  EXPECT_GT(drain(milliseconds(400)), 0.4 * 600);
  drain(seconds(1));
  EXPECT_GT(drain(seconds(1)), 0.8 * 600);
}

TEST_F(DrainGovernorTest, ItIsFastAgainWithinASecondWhenNobodyWaits) {
  clock_.advance(seconds(1));
  device_->active = true;
  drain(seconds(5));
  device_->active = false;
  drain(seconds(1));
  largest_ = 0;
  EXPECT_GT(drain(seconds(1)), 950);
  EXPECT_EQ(largest_, 8 * kMiB);
}

TEST_F(DrainGovernorTest, ItNeverStopsHoweverLateTheForegroundIs) {
  clock_.advance(seconds(1));
  device_->active = true;
  device_->scale = 1e6;
  drain(seconds(5));
  EXPECT_NEAR(drain(seconds(10)), 8, 1);
  EXPECT_NEAR(governor_.report().lowest_rate, 8 * kMebi, 1);
}

TEST_F(DrainGovernorTest, SomebodyWhoWaitsAgainFindsTheRateThatServedLast) {
  clock_.advance(seconds(1));
  device_->active = true;
  drain(seconds(10));
  device_->active = false;
  drain(seconds(3));
  device_->active = true;
  drain(milliseconds(200));
  EXPECT_LT(drain(milliseconds(500)), 700);
}

TEST(LatencyWindow, KnowsThe99thPercentileOfALatelyReadWindow) {
  LatencyWindow window;
  Clock::TimePoint now{seconds(100)};
  EXPECT_FALSE(window.p99(now));
  for (int i = 1; i <= 200; ++i) window.add(now, microseconds(i));
  EXPECT_EQ(window.p99(now), Clock::Duration(microseconds(198)));
  EXPECT_FALSE(window.p99(now + seconds(1)));
  for (int i = 0; i < 5000; ++i) window.add(now + seconds(1), microseconds(7));
  EXPECT_EQ(window.p99(now + seconds(1)), Clock::Duration(microseconds(7)));
  const auto shared = std::make_shared<LatencyWindow>();
  const auto signal = make_own_signal(shared, milliseconds(1));
  EXPECT_FALSE(signal->read(now));
  shared->add(now, milliseconds(3));
  EXPECT_EQ(signal->read(now)->latency, milliseconds(3));
}

// A second real process publishes; this one reads, and no longer when it is gone or silent.
TEST(NodeSignal, AnotherProcessIsHeardWhileItSpeaks) {
  const testing::TempDir temp;
  const std::string folder = temp.file("latency");
  const auto signal = make_node_signal(folder);
  const auto now = [] { return steady_clock().now(); };
  EXPECT_FALSE(signal->read(now()));  // there is no folder yet
  std::array<int, 2> to_child{};
  std::array<int, 2> from_child{};
  ASSERT_EQ(::pipe(to_child.data()), 0);
  ASSERT_EQ(::pipe(from_child.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    auto publisher = LatencyPublisher::open(folder);
    bool well = publisher.ok() && (*publisher)->publish(now(), {milliseconds(6), milliseconds(2)}).ok();
    well = well && ::write(from_child[1], "p", 1) == 1 && ::read(to_child[0], &byte, 1) == 1;
    publisher = Error(ErrorCode::cancelled, "");
    well = well && ::write(from_child[1], "q", 1) == 1 && ::read(to_child[0], &byte, 1) == 1;
    ::_exit(well ? 0 : 1);
  }
  char byte = 0;
  ASSERT_EQ(::read(from_child[0], &byte, 1), 1);
  const auto reading = signal->read(now());
  ASSERT_TRUE(reading);
  EXPECT_EQ(reading->latency, milliseconds(6));
  EXPECT_EQ(reading->target, milliseconds(2));
  EXPECT_FALSE(signal->read(now() + seconds(2)));  // it has fallen silent
  ASSERT_EQ(::write(to_child[1], "x", 1), 1);
  ASSERT_EQ(::read(from_child[0], &byte, 1), 1);
  EXPECT_FALSE(signal->read(now()));  // it took it back
  ASSERT_EQ(::write(to_child[1], "x", 1), 1);
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(NodeSignal, OfSeveralTheOneThatIsLatestCountsAndRubbishDoesNot) {
  const testing::TempDir temp;
  const std::string folder = temp.file("latency");
  const Clock::TimePoint now = steady_clock().now();
  const auto first = LatencyPublisher::open(folder).value();
  const auto second = LatencyPublisher::open(folder).value();
  ASSERT_TRUE(first->publish(now, {milliseconds(9), milliseconds(10)}).ok());
  ASSERT_TRUE(second->publish(now, {milliseconds(3), milliseconds(1)}).ok());
  std::ofstream(folder + "/rubbish") << std::string(100, 'x');
  std::ofstream(folder + "/short") << "x";
  EXPECT_EQ(make_node_signal(folder)->read(now)->latency, milliseconds(3));
  ASSERT_TRUE(second->publish(now, {Clock::Duration::zero(), milliseconds(1)}).ok());  // nonsense
  EXPECT_EQ(make_node_signal(folder)->read(now)->latency, milliseconds(9));
}

TEST(DiskSignal, TellsTheMeanTimeOfReads) {
  const testing::TempDir root;
  std::filesystem::create_directories(root.path() / "sys/dev/block/8:1");
  const auto signal = make_disk_signal(makedev(8, 1), milliseconds(2), root.path().string());
  const Clock::TimePoint now{seconds(10)};
  EXPECT_FALSE(signal->read(now));  // missing
  root.write("sys/dev/block/8:1/stat", "1000 0 8000 500 1 2 3 4 5 6 7");
  EXPECT_FALSE(signal->read(now));  // nothing to compare with yet
  root.write("sys/dev/block/8:1/stat", "1200 0 8000 1500 1 2 3 4 5 6 7");
  EXPECT_EQ(signal->read(now + seconds(1))->latency, milliseconds(5));
  root.write("sys/dev/block/8:1/stat", "1210 0 8000 9500 1 2 3 4 5 6 7");
  EXPECT_FALSE(signal->read(now + seconds(2)));  // ten reads say nothing
}

TEST(PressureSignal, TellsTheShareOfASecondThatSomebodyStalled) {
  const testing::TempDir root;
  std::filesystem::create_directories(root.path() / "proc/pressure");
  const auto signal = make_pressure_signal(milliseconds(200), root.path().string());
  const Clock::TimePoint now{seconds(10)};
  EXPECT_FALSE(signal->read(now));
  root.write("proc/pressure/io", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\nfull avg10=0 total=7\n");
  EXPECT_FALSE(signal->read(now));
  root.write("proc/pressure/io", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1800000\nfull avg10=0 total=7\n");
  EXPECT_EQ(signal->read(now + seconds(2))->latency, milliseconds(400));
  EXPECT_FALSE(signal->read(now + seconds(3)));  // nobody stalled
}

}  // namespace
}  // namespace infercluster::io
