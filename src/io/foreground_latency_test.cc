// SPDX-License-Identifier: Apache-2.0
#include "io/foreground_latency.h"

#include <gtest/gtest.h>

#include "testing/temp_dir.h"

namespace infercluster::io {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(ForegroundLatency, ADrainOfTheNodeSeesThe99thPercentileAndTheTarget) {
  const testing::TempDir temp;
  const std::string folder = temp.file("latency");
  auto told = ForegroundLatency::open(folder, milliseconds(4)).value();
  const auto drain = make_node_signal(folder);
  Clock::TimePoint now{seconds(100)};
  EXPECT_FALSE(drain->read(now));
  for (int i = 1; i <= 200; ++i) {
    now += milliseconds(1);
    told->add(now, milliseconds(i <= 195 ? 1 : 9));
  }
  now += milliseconds(60);
  told->add(now, milliseconds(1));
  const auto reading = drain->read(now);
  ASSERT_TRUE(reading);
  EXPECT_EQ(reading->latency, milliseconds(9));
  EXPECT_EQ(reading->target, milliseconds(4));
  told.reset();
  EXPECT_FALSE(drain->read(now));
}

TEST(ForegroundLatency, IsToldOncePerFiftyMilliseconds) {
  const testing::TempDir temp;
  const std::string folder = temp.file("latency");
  const auto told = ForegroundLatency::open(folder, milliseconds(4)).value();
  const auto drain = make_node_signal(folder);
  const Clock::TimePoint now{seconds(100)};
  told->add(now, milliseconds(1));
  told->add(now + milliseconds(49), milliseconds(8));
  EXPECT_EQ(drain->read(now)->latency, milliseconds(1));
  for (int i = 0; i < 2; ++i) told->add(now + milliseconds(50), milliseconds(8));
  EXPECT_EQ(drain->read(now)->latency, milliseconds(8));
}

TEST(ForegroundLatency, AFolderThatIsNoneIsAnError) {
  const testing::TempDir temp;
  temp.write("file", "x");
  EXPECT_FALSE(ForegroundLatency::open(temp.file("file"), milliseconds(4)).ok());
}

}  // namespace
}  // namespace infercluster::io
