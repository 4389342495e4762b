// SPDX-License-Identifier: Apache-2.0
#include "load/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <set>

#include "base/units.h"
#include "io/latency_signal.h"
#include "load/test_repository.h"
#include "testing/temp_dir.h"

namespace infercluster::load {
namespace {

using safetensors::Dtype;
using ::testing::HasSubstr;

class StreamTest : public OnEachWay {
 protected:
  StreamTest() {
    for (int file = 0; file < 2; ++file) {
      std::vector<safetensors::Tensor> tensors;
      for (int i = 0; i < 40; ++i) {
        tensors.push_back(tensor_of("t" + std::to_string(file) + "." + std::to_string(i),
                                    i % 7 == 0 ? Dtype::u8 : Dtype::f32,
                                    {static_cast<std::uint64_t>(i % 11 == 5 ? 0 : 20000 + 913 * i)}));
      }
      repository_.add_file(std::to_string(file) + ".safetensors", std::move(tensors), file == 0 ? 0 : 3);
    }
  }

  // Hands each tensor to `consume` until the end; the error, if one ends the stream.
  template <typename Consume>
  std::optional<Error> drain(Stream& stream, Consume consume) {
    while (true) {
      auto next = stream.next(std::chrono::seconds(20));
      if (!next.ok()) return std::move(next).error();
      EXPECT_NE(next->state, Stream::State::waiting);
      if (next->state != Stream::State::tensor) return std::nullopt;
      consume(std::move(*next->tensor));
    }
  }

  TestRepository repository_;
};

TEST_P(StreamTest, YieldsEveryTensorOnceWithinTheWindow) {
  for (const std::uint64_t window : {2 * kMiB, 3 * kMiB, 64 * kMiB}) {
    options_.memory = window;
    auto stream = Stream::start(repository_.open(), options_, environment_).value();
    std::set<std::string> seen;
    const auto error = drain(*stream, [&](LoadedTensor tensor) {
      repository_.expect_equal(tensor);
      EXPECT_TRUE(seen.insert(tensor.name).second);
    });
    ASSERT_FALSE(error.has_value()) << error->to_string();
    EXPECT_EQ(seen.size(), repository_.size());
    EXPECT_LE(stream->report().peak_host_bytes, window);
    EXPECT_EQ(stream->report().donated_blocks, 0U);
  }
}

// A microsecond passes at each look: every read takes a while, and all of them together less than what is published
// counts.
class TickingClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override {
    return TimePoint(std::chrono::seconds(100) + std::chrono::microseconds(ticks_++));
  }

 private:
  mutable std::atomic<std::int64_t> ticks_{0};
};

TEST_P(StreamTest, DrainsOfTheNodeSeeItsLatencyAndTarget) {
  const testing::TempDir temp;
  const std::string folder = temp.file("latency");
  ASSERT_EQ(::setenv("INFERCLUSTER_LATENCY_DIR", folder.c_str(), 1), 0);
  const TickingClock clock;
  environment_.clock = &clock;
  options_.direct = io::DirectPolicy::always;  // reading their headers makes such small files resident
  options_.memory = 2 * kMiB;                  // more is not read before the consumer asks
  options_.latency_target = std::chrono::milliseconds(7);
  auto stream = Stream::start(repository_.open(), options_, environment_).value();
  const auto first = stream->next(std::chrono::seconds(20));
  ASSERT_TRUE(first.ok() && first->state == Stream::State::tensor);
  const auto reading = io::make_node_signal(folder)->read(clock.now());
  ::unsetenv("INFERCLUSTER_LATENCY_DIR");
  ASSERT_TRUE(reading);
  EXPECT_EQ(reading->target, std::chrono::milliseconds(7));
  EXPECT_GT(reading->latency, Clock::Duration::zero());
  stream.reset();
  EXPECT_TRUE(std::filesystem::is_empty(folder));  // it took it back
}

TEST_P(StreamTest, WhereNobodyCanBeToldOfItsLatencyTheReportSaysSo) {
  const testing::TempDir temp;
  temp.write("file", "x");
  ASSERT_EQ(::setenv("INFERCLUSTER_LATENCY_DIR", temp.file("file").c_str(), 1), 0);
  options_.latency_target = std::chrono::milliseconds(7);
  auto stream = Stream::start(repository_.open(), options_, environment_).value();
  ::unsetenv("INFERCLUSTER_LATENCY_DIR");
  const auto error = drain(*stream, [&](const LoadedTensor& tensor) { repository_.expect_equal(tensor); });
  ASSERT_FALSE(error.has_value()) << error->to_string();
  EXPECT_THAT(stream->report().notices, ::testing::Contains(HasSubstr("checkpoints do not give way to it")));
}

TEST_P(StreamTest, WhatAConsumerKeepsIsNeverOverwritten) {
  std::mt19937 random(3);
  for (int round = 0; round < 4; ++round) {
    options_.memory = 8 * kMiB;
    auto stream = Stream::start(repository_.open(), options_, environment_).value();
    std::vector<LoadedTensor> kept;
    std::uint64_t bytes = 0;
    const auto error = drain(*stream, [&](LoadedTensor tensor) {
      if (random() % 6 == 0 && bytes < kMiB) {
        bytes += tensor.bytes;
        kept.push_back(std::move(tensor));
      }
    });
    ASSERT_FALSE(error.has_value()) << error->to_string();
    stream.reset();
    for (const LoadedTensor& tensor : kept) repository_.expect_equal(tensor);
  }
}

TEST_P(StreamTest, KeepingMoreThanTheWindowIsAnErrorThatSaysSo) {
  options_.memory = 2 * kMiB;
  auto stream = Stream::start(repository_.open(), options_, environment_).value();
  std::vector<LoadedTensor> kept;
  const auto error = drain(*stream, [&](LoadedTensor tensor) { kept.push_back(std::move(tensor)); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::too_large);
  EXPECT_THAT(error->to_string(), HasSubstr("window"));
  EXPECT_GT(stream->report().donated_blocks, 0U);
  stream.reset();
  for (const LoadedTensor& tensor : kept) repository_.expect_equal(tensor);
}

TEST_P(StreamTest, AWindowThatCannotHoldTheLargestTensorIsRefusedWithTheFigure) {
  for (const std::uint64_t window : {std::uint64_t{1}, 64 * kKiB, kMiB}) {
    options_.memory = window;
    const auto stream = Stream::start(repository_.open(), options_, environment_);
    ASSERT_FALSE(stream.ok());
    EXPECT_THAT(stream.error().to_string(), HasSubstr("the largest tensor needs"));
  }
}

TEST_P(StreamTest, CanBeLeftAtAnyMoment) {
  for (int taken = 0; taken < 30; taken += 3) {
    options_.memory = 2 * kMiB;
    auto stream = Stream::start(repository_.open(), options_, environment_).value();
    std::vector<LoadedTensor> last;
    for (int i = 0; i < taken; ++i) {
      auto next = stream->next(std::chrono::seconds(20)).value();
      last = {std::move(*next.tensor)};
    }
    stream.reset();
    for (const LoadedTensor& tensor : last) repository_.expect_equal(tensor);
  }
}

TEST_P(StreamTest, CancelIsAnErrorOfTheNextCall) {
  options_.memory = 2 * kMiB;
  auto stream = Stream::start(repository_.open(), options_, environment_).value();
  stream->cancel();
  const auto error = drain(*stream, [](const LoadedTensor&) {});
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::cancelled);
}

INSTANTIATE_TEST_SUITE_P(Ways, StreamTest, every_way(), way_name);

}  // namespace
}  // namespace infercluster::load
