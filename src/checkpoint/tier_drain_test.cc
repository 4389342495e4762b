// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/tier_drain.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "base/log.h"
#include "checkpoint/names.h"
#include "checkpoint/saved_test_helpers.h"
#include "testing/fault_files.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::Dtype;
using test::Memory;
using test::mesh_pieces;
using test::save;
using test::whole;
using testing::FaultFiles;
using testing::FileFault;

constexpr std::uint64_t kExtent = 2 * manifest::kBlockBytes;

// Ten extents of one rank, and a tail that is no page.
Pieces large_pieces(std::uint64_t, std::uint64_t) {
  return {whole("large", Dtype::u8, {10 * kExtent + 777})};
}

Pieces small_pieces(std::uint64_t, std::uint64_t) {
  return {whole("small", Dtype::u8, {2 * kExtent + 777})};
}

DrainOptions small_extents(Exists exists = Exists::error) {
  DrainOptions options;
  options.exists = exists;
  options.copy.extent_bytes = kExtent;
  options.copy.write.request_bytes = manifest::kBlockBytes;
  options.copy.write.threads = 2;
  return options;
}

class TierDrain : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(fast());
    fs::create_directory(root());
  }
  std::string fast() const { return (temp_.path() / "fast").string(); }
  std::string root() const { return (temp_.path() / "root").string(); }
  Result<DrainReport> drain(std::uint64_t step, const DrainOptions& options,
                            io::FileCalls& calls = io::system_files()) const {
    IC_TRY(const io::Directory from, calls.open_directory(fast()));
    IC_TRY(const io::Directory to, calls.open_directory(root()));
    return drain_step(calls, from, step, to, options);
  }
  // Whether the root's checkpoint has all bytes of that seed.
  static bool holds(const std::string& root, std::uint64_t step, const Pieces& pieces, std::uint64_t seed) {
    Memory memory = test::memory_of(pieces, 0);
    memory.overwrite();
    return test::open_saved(root, step)->restore(memory.targets(), {}).ok() && memory.difference(seed).empty();
  }
  bool is_committed(std::uint64_t step) const {
    const auto directory = io::system_files().open_directory(root());
    return is_whole(io::system_files(), *directory, step);
  }
  std::set<std::string> names(std::uint64_t step) const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(fs::path(root()) / step_name(step)))
      names.insert(entry.path().filename().string());
    return names;
  }

  testing::TempDir temp_;
};

TEST_F(TierDrain, TheLowerTierHasTheCheckpointOfAllRanksWithACommitOfItsOwn) {
  save(fast(), mesh_pieces, {.step = 5, .world = 4});
  const auto report = drain(5, small_extents());
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_FALSE(report->was_durable);
  EXPECT_EQ(report->copied.bytes_resumed, 0U);
  fs::remove_all(fast());
  EXPECT_TRUE(holds(root(), 5, mesh_pieces(1, 3), 7));
  const std::set<std::string> files = names(5);
  EXPECT_TRUE(files.contains("COMMIT"));
  for (const std::string& name : files) EXPECT_FALSE(name.starts_with(".")) << name;
}

TEST_F(TierDrain, ASecondTimeThereIsNothingToDo) {
  save(fast(), large_pieces, {.step = 5});
  ASSERT_TRUE(drain(5, small_extents()).ok());
  const auto again = drain(5, small_extents());
  ASSERT_TRUE(again.ok()) << again.error().to_string();
  EXPECT_TRUE(again->was_durable);
  EXPECT_EQ(again->copied.bytes, 0U);
}

// Wherever it is interrupted, what was noted as durable is not written a second time.
TEST_F(TierDrain, GoesOnWithTheExtentThatWasOnItsWay) {
  save(fast(), large_pieces, {.step = 5});
  DrainOptions options = small_extents();
  options.progress = [](std::uint64_t bytes, std::uint64_t) { return bytes < 4 * kExtent; };
  const auto cut = drain(5, options);
  ASSERT_FALSE(cut.ok());
  EXPECT_EQ(cut.error().code(), ErrorCode::cancelled);
  EXPECT_FALSE(is_committed(5));
  std::uint64_t written = 0;
  FaultFiles counting([&](std::uint64_t, std::string_view call, const std::string& path) {
    if (call == "write" && path.ends_with(".safetensors")) ++written;
    return FileFault{};
  });
  const auto report = drain(5, small_extents(), counting);
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_EQ(report->copied.bytes_resumed, 4 * kExtent);
  const std::uint64_t rest = report->copied.bytes - 4 * kExtent;
  // One request per block; the last one has less than a page, which is written alone.
  EXPECT_LT(rest % manifest::kBlockBytes, 4096U);
  EXPECT_EQ(written, rest / manifest::kBlockBytes + 1);
  EXPECT_TRUE(holds(root(), 5, large_pieces(0, 1), 7));
}

TEST_F(TierDrain, ANoteThatTheFileDoesNotBearOutIsNotBelieved) {
  save(fast(), large_pieces, {.step = 5});
  DrainOptions options = small_extents();
  options.progress = [](std::uint64_t bytes, std::uint64_t) { return bytes < 4 * kExtent; };
  ASSERT_FALSE(drain(5, options).ok());
  fs::resize_file(fs::path(root()) / "step-5" / segment_name({0, 1}, 0), 3 * kExtent);
  const auto report = drain(5, small_extents());
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_EQ(report->copied.bytes_resumed, 0U);
  EXPECT_TRUE(holds(root(), 5, large_pieces(0, 1), 7));
}

// The power took the segment's name and left the note's; then the next try is interrupted before it notes anything.
TEST_F(TierDrain, ANoteOfALostSegmentIsNotBelievedOfTheNextOne) {
  save(fast(), large_pieces, {.step = 5});
  DrainOptions options = small_extents();
  options.progress = [](std::uint64_t bytes, std::uint64_t) { return bytes < 4 * kExtent; };
  ASSERT_FALSE(drain(5, options).ok());
  fs::remove(fs::path(root()) / "step-5" / segment_name({0, 1}, 0));
  FaultFiles faulty([](std::uint64_t, std::string_view call, const std::string& path) {
    return FileFault{.error = call == "write" && path.ends_with(".safetensors") ? EIO : 0};
  });
  ASSERT_FALSE(drain(5, small_extents(), faulty).ok());
  const auto report = drain(5, small_extents());
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_EQ(report->copied.bytes_resumed, 0U);
  EXPECT_TRUE(holds(root(), 5, large_pieces(0, 1), 7));
}

TEST_F(TierDrain, AWrongByteIsNeverCommitted) {
  save(fast(), large_pieces, {.step = 5});
  const std::string segment = fast() + "/step-5/" + segment_name({0, 1}, 0);
  for (const std::int64_t at : {std::int64_t{9}, std::int64_t{5 * kExtent + 3}, std::int64_t{-1}}) {
    test::flip(segment, at);
    const auto report = drain(5, small_extents());
    ASSERT_FALSE(report.ok()) << at;
    EXPECT_EQ(report.error().code(), ErrorCode::corrupt);
    EXPECT_NE(report.error().to_string().find(segment), std::string::npos) << report.error().to_string();
    EXPECT_FALSE(is_committed(5));
    test::flip(segment, at);
  }
  ASSERT_TRUE(drain(5, small_extents()).ok());
  EXPECT_TRUE(holds(root(), 5, large_pieces(0, 1), 7));
}

TEST_F(TierDrain, AnotherSaveOfTheStepStaysUntilItIsAskedToGo) {
  save(root(), mesh_pieces, {.step = 5, .world = 2, .seed = 1});
  save(fast(), mesh_pieces, {.step = 5, .world = 2, .seed = 2});
  const auto refused = drain(5, small_extents());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  EXPECT_TRUE(holds(root(), 5, mesh_pieces(0, 1), 1));
  const auto replaced = drain(5, small_extents(Exists::replace));
  ASSERT_TRUE(replaced.ok()) << replaced.error().to_string();
  EXPECT_EQ(replaced->epoch, 2U);
  EXPECT_TRUE(holds(root(), 5, mesh_pieces(0, 1), 2));
}

TEST_F(TierDrain, WhatIsNotDurableIsNotDrained) {
  save(fast(), large_pieces, {.step = 5});
  fs::remove(fast() + "/step-5/COMMIT");
  const auto report = drain(5, small_extents());
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code(), ErrorCode::not_found);
  EXPECT_TRUE(fs::is_empty(root()));
}

// Every call fails once, and once its answer is lost: what counts then is whole, and the next call ends it.
TEST_F(TierDrain, AFaultAtAnyCallIsMadeGoodByTheNext) {
  set_log_level(LogLevel::off);
  save(fast(), small_pieces, {.step = 5});
  FaultFiles counting(nullptr);
  ASSERT_TRUE(drain(5, small_extents(), counting).ok());
  const std::size_t calls = counting.calls().size();
  ASSERT_GT(calls, 40U);
  for (const bool done_anyway : {false, true}) {
    for (std::size_t call = 0; call < calls; ++call) {
      SCOPED_TRACE("call " + std::to_string(call) + ": " + counting.calls()[call]);
      fs::remove_all(root());
      fs::create_directory(root());
      FaultFiles faulty([&](std::uint64_t number, std::string_view, const std::string&) {
        return number == call ? FileFault{.error = EIO, .done_anyway = done_anyway} : FileFault{};
      });
      const auto first = drain(5, small_extents(), faulty);
      EXPECT_TRUE(!first.ok() || is_committed(5));
      if (is_committed(5)) {
        EXPECT_TRUE(holds(root(), 5, small_pieces(0, 1), 7));
      }
      const auto second = drain(5, small_extents());
      ASSERT_TRUE(second.ok()) << second.error().to_string();
      ASSERT_TRUE(holds(root(), 5, small_pieces(0, 1), 7));
    }
  }
  set_log_level(LogLevel::warning);
}

}  // namespace
}  // namespace infercluster::checkpoint
