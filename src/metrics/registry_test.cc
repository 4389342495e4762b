// SPDX-License-Identifier: Apache-2.0
#include "metrics/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace infercluster::metrics {
namespace {

using ::testing::HasSubstr;

TEST(Registry, TextHasHelpTypeLabelsAndValues) {
  Registry registry;
  registry.counter("infercluster_read_bytes_total", "Bytes read", {{"mode", "direct"}}).add(4096);
  registry.counter("infercluster_read_bytes_total", "Bytes read", {{"mode", "buffered"}}).add();
  const std::string text = registry.to_prometheus_text();
  EXPECT_THAT(text, HasSubstr("# HELP infercluster_read_bytes_total Bytes read\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE infercluster_read_bytes_total counter\n"));
  EXPECT_THAT(text, HasSubstr("infercluster_read_bytes_total{mode=\"direct\"} 4096\n"));
  EXPECT_THAT(text, HasSubstr("infercluster_read_bytes_total{mode=\"buffered\"} 1\n"));
}

TEST(Registry, TheSameNameAndLabelsAreTheSameMetric) {
  Registry registry;
  const Counter first = registry.counter("a_total", "A");
  const Counter second = registry.counter("a_total", "A");
  first.add(2);
  second.add(3);
  EXPECT_EQ(first.value(), 5);
  EXPECT_EQ(registry.counter("a_total", "A", {{"k", "v"}}).value(), 0);
}

TEST(Registry, HistogramsCountIntoTheirBuckets) {
  Registry registry;
  const Histogram histogram = registry.histogram("wait_seconds", "Waited", {0.25, 1});
  histogram.observe(0.05);
  histogram.observe(0.5);
  histogram.observe(5);
  const std::string text = registry.to_prometheus_text();
  EXPECT_THAT(text, HasSubstr("# TYPE wait_seconds histogram\n"));
  EXPECT_THAT(text, HasSubstr("wait_seconds_bucket{le=\"0.25\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("wait_seconds_bucket{le=\"1\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("wait_seconds_bucket{le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("wait_seconds_count 3\n"));
}

TEST(Registry, IsEmptyAtFirst) {
  EXPECT_EQ(Registry().to_prometheus_text(), "");
}

TEST(Registry, ThreadsLoseNoCount) {
  Registry registry;
  constexpr int kThreads = 4;
  constexpr int kEach = 5000;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      const Counter counter = registry.counter("a_total", "A");
      const Histogram histogram = registry.histogram("b_seconds", "B", {1});
      for (int i = 0; i < kEach; ++i) {
        counter.add();
        histogram.observe(0.5);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(registry.counter("a_total", "A").value(), kThreads * kEach);
  EXPECT_THAT(registry.to_prometheus_text(), HasSubstr("b_seconds_count 20000\n"));
}

TEST(RegistryDeathTest, WrongNamesAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Registry registry;
  EXPECT_DEATH(registry.counter("not a name", "A"), "internal error");
  registry.counter("a_total", "A").add();
  EXPECT_DEATH(registry.histogram("a_total", "A", {1}), "internal error");
  EXPECT_DEATH(registry.histogram("b", "B", {1, 1}), "internal error");
}

}  // namespace
}  // namespace infercluster::metrics
