// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace infercluster {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

class LogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_sink([this](LogLevel level, std::string_view text) { lines_.emplace_back(level, text); });
    set_log_level(LogLevel::warning);
  }
  void TearDown() override {
    set_log_sink({});
    set_log_level(LogLevel::warning);
  }

  std::vector<std::pair<LogLevel, std::string>> lines_;
};

TEST_F(LogTest, TheSinkGetsWhatTheLevelLetsThrough) {
  log_debug("a");
  log_info("b");
  log_warning("c");
  log_error("d");
  EXPECT_THAT(lines_, ElementsAre(Pair(LogLevel::warning, "c"), Pair(LogLevel::error, "d")));
  lines_.clear();
  set_log_level(LogLevel::debug);
  log_debug("a");
  set_log_level(LogLevel::off);
  log_error("b");
  EXPECT_THAT(lines_, ElementsAre(Pair(LogLevel::debug, "a")));
}

TEST_F(LogTest, OneCallAtATime) {
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 500; ++i) log_error("x");  // the sink's vector has no lock of its own
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lines_.size(), 2000U);
}

TEST_F(LogTest, TheDefaultWritesLinesToStderr) {
  set_log_sink({});
  ::testing::internal::CaptureStderr();
  log_warning("disk {} is 50% full");  // no format string
  log_info("unseen");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "infercluster: warning: disk {} is 50% full\n");
  EXPECT_TRUE(lines_.empty());
}

}  // namespace
}  // namespace infercluster
