// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpointer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <mutex>

#include "base/log.h"
#include "base/units.h"
#include "checkpoint/checkpoint_test_helpers.h"
#include "checkpoint/restore.h"
#include "os/limits.h"
#include "safetensors/header.h"
#include "testing/fault_files.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

using test::Dtype;
using test::Memory;
using test::whole;

class CheckpointerTest : public test::OnEachDevice {
 protected:
  static Memory model(std::uint64_t seed) {
    Memory memory;
    memory.add(whole("w", Dtype::f32, {100, 300}), seed);
    memory.add(whole("größe", Dtype::bf16, {7, 11, 13}), seed);
    memory.add(whole("flags", Dtype::u8, {65'537}), seed);
    memory.add(whole("scalar", Dtype::i64, {}), seed);
    memory.add(whole("none", Dtype::f16, {0, 4}), seed);
    return memory;
  }
  std::unique_ptr<Checkpointer> open(const Options& options = {}) {
    auto checkpointer = Checkpointer::open(temp_.path().string(), options);
    IC_ASSERT(checkpointer.ok());
    return std::move(checkpointer).value();
  }
  // What keeps the step from being loaded with the bytes of `seed`; empty: nothing.
  std::string problem(std::uint64_t step, std::uint64_t seed) {
    auto checkpoint = Checkpoint::open(io::system_files(), temp_.path().string(), step);
    if (!checkpoint.ok()) return checkpoint.error().to_string();
    Memory memory = model(0);
    memory.overwrite();
    const auto report = (*checkpoint)->restore(memory.targets(), {});
    return report.ok() ? memory.difference(seed) : report.error().to_string();
  }

  testing::TempDir temp_;
};

TEST_P(CheckpointerTest, WhatWasSavedComesBack) {
  auto checkpointer = open();
  const Memory memory = model(1);
  const auto save = checkpointer->save(100, memory.state(), {});
  ASSERT_TRUE(save.ok()) << save.error().to_string();
  const Status durable = (*save)->wait();
  ASSERT_TRUE(durable.ok()) << durable.error().to_string();
  EXPECT_EQ((*save)->status(), SaveStatus::durable);
  EXPECT_EQ(problem(100, 1), "");
  EXPECT_EQ(*checkpointer->steps(), std::vector<std::uint64_t>{100});
  EXPECT_EQ(*checkpointer->latest(), 100U);
}

TEST_P(CheckpointerTest, TheStateMayChangeAsSoonAsSaveReturns) {
  auto checkpointer = open();
  Memory memory = model(1);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    Memory state = model(step);
    ASSERT_TRUE(checkpointer->save(step, state.state(), {}).ok());
    state.overwrite();
  }
  checkpointer->wait_idle();
  for (std::uint64_t step = 1; step <= 3; ++step) EXPECT_EQ(problem(step, step), "") << step;
}

TEST_P(CheckpointerTest, AStateLargerThanTheArenaIsCopiedInWaves) {
  Options options;
  options.arena_bytes = 2 * 64 * 1024;
  auto checkpointer = open(options);
  Memory memory = model(1);
  const auto save = checkpointer->save(1, memory.state(), {});
  memory.overwrite();
  ASSERT_TRUE(save.ok()) << save.error().to_string();
  ASSERT_TRUE((*save)->wait().ok());
  EXPECT_EQ((*save)->report().waves, 3U);
  EXPECT_EQ(problem(1, 1), "");
}

std::size_t entries_in(const char* folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

// ASan keeps what was freed for a while (256 MiB of it), and TSan remembers threads that ended.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kGrowth = 256 * kMiB;
#else
constexpr std::uint64_t kGrowth = 4 * kMiB;
#endif

// Case P09: memory, threads and descriptors are after many saves where they were after the second.
TEST_P(CheckpointerTest, ManySavesHoldOnToNothing) {
  Options options;
  options.retention.keep = 1;
  auto checkpointer = open(options);
  const Memory memory = model(1);
  std::size_t descriptors = 0;
  std::size_t threads = 0;
  std::uint64_t resident = 0;
  for (std::uint64_t step = 1; step <= 50; ++step) {
    ASSERT_TRUE(checkpointer->save(step, memory.state(), {}).ok());
    if (step != 2 && step != 50) continue;
    checkpointer->wait_idle();
    if (step == 2) {
      descriptors = entries_in("/proc/self/fd");
      threads = entries_in("/proc/self/task");
      resident = os::resident_bytes();
    }
  }
  EXPECT_EQ(entries_in("/proc/self/fd"), descriptors);
  EXPECT_EQ(entries_in("/proc/self/task"), threads);
  EXPECT_LT(os::resident_bytes(), resident + kGrowth);
  EXPECT_EQ(*checkpointer->steps(), std::vector<std::uint64_t>{50});
}

// Case T01: what is said of a save is so: nothing is there while it is staged, and no error is lost.
TEST_P(CheckpointerTest, ScheduledStagedAndDurableAreToldApart) {
  std::mutex mutex;
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) {
    const std::lock_guard lock(mutex);
    lines.emplace_back(line);
  });
  set_log_level(LogLevel::info);
  std::promise<void> go;
  std::shared_future<void> gate = go.get_future().share();
  testing::FaultFiles slow([gate](std::uint64_t, std::string_view call, const std::string& path) {
    if (call == "sync" && path.ends_with(".safetensors")) gate.wait();
    return testing::FileFault{};
  });
  Options options;
  options.calls = &slow;
  auto checkpointer = open(options);
  const auto save = checkpointer->save(4, model(1).state(), {});
  ASSERT_TRUE(save.ok());
  EXPECT_EQ((*save)->status(), SaveStatus::staged);
  EXPECT_TRUE(checkpointer->steps()->empty());
  EXPECT_EQ(*checkpointer->latest(), std::nullopt);
  go.set_value();
  ASSERT_TRUE((*save)->wait().ok());
  EXPECT_EQ((*save)->status(), SaveStatus::durable);
  EXPECT_EQ(*checkpointer->latest(), 4U);
  set_log_sink({});
  set_log_level(LogLevel::warning);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0], "step 4: scheduled");
  EXPECT_EQ(lines[1], "step 4: staged");
  EXPECT_EQ(lines[2].find("step 4: durable ("), 0U) << lines[2];
}

TEST_P(CheckpointerTest, ASegmentIsAStockSafetensorsFile) {
  auto checkpointer = open();
  ASSERT_TRUE(checkpointer->save(1, model(1).state(), {.wait = Wait::until_durable}).ok());
  const std::string path = temp_.file("step-1/node-0.0.1.safetensors");
  const auto text = *os::read_small_file(path, 10 << 20);
  const auto bytes = std::as_bytes(std::span(text));
  const auto length = safetensors::parse_header_length(bytes.first(8), text.size());
  ASSERT_TRUE(length.ok()) << length.error().to_string();
  const auto header = safetensors::parse_header(bytes.subspan(8, *length), text.size());
  ASSERT_TRUE(header.ok()) << header.error().to_string();
  EXPECT_EQ(header->tensors().size(), 5U);
  const auto* scalar = header->find("scalar");
  ASSERT_NE(scalar, nullptr);
  EXPECT_EQ(bytes[header->data_begin() + scalar->begin + 3], test::byte_of("scalar", 1, 3));
}

TEST_P(CheckpointerTest, PreparedMemoryIsWhatTheFirstSavesUse) {
  auto checkpointer = open();
  const Memory memory = model(1);
  ASSERT_TRUE(checkpointer->prepare(64 * kMiB).ok());
  const std::uint64_t resident = os::resident_bytes();
  for (std::uint64_t step = 1; step <= 2; ++step) ASSERT_TRUE(checkpointer->save(step, memory.state(), {}).ok());
  checkpointer->wait_idle();
  EXPECT_LT(os::resident_bytes(), resident + 4 * kMiB);
  EXPECT_GE(resident, 128 * kMiB);
  EXPECT_EQ(problem(2, 1), "");
}

TEST_P(CheckpointerTest, AStepIsNotSavedTwiceUnasked) {
  auto checkpointer = open();
  ASSERT_TRUE(checkpointer->save(5, model(1).state(), {}).ok());
  const auto again = checkpointer->save(5, model(2).state(), {});
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(problem(5, 1), "");
}

TEST_P(CheckpointerTest, AReplacementTakesOverAndTheOldEpochGoes) {
  auto checkpointer = open();
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const auto save = checkpointer->save(5, model(seed).state(), {Wait::until_durable, Exists::replace});
    ASSERT_TRUE(save.ok()) << save.error().to_string();
    EXPECT_EQ((*save)->report().epoch, seed);
    checkpointer->wait_idle();
    EXPECT_EQ(problem(5, seed), "");
  }
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(temp_.path() / "step-5")) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"COMMIT", "node-0.0.3.safetensors", "node-0.3.index.json"}));
}

TEST_P(CheckpointerTest, OldCheckpointsGoButForThoseToKeep) {
  Options options;
  options.retention = {.keep = 2, .keep_every = 3};
  auto checkpointer = open(options);
  for (std::uint64_t step = 1; step <= 8; ++step) {
    ASSERT_TRUE(checkpointer->save(step, model(step).state(), {.wait = Wait::until_durable}).ok());
  }
  checkpointer->wait_idle();
  EXPECT_EQ(*checkpointer->steps(), (std::vector<std::uint64_t>{3, 6, 7, 8}));
}

INSTANTIATE_TEST_SUITE_P(State, CheckpointerTest, test::every_device(), test::device_name);

}  // namespace
}  // namespace infercluster::checkpoint
