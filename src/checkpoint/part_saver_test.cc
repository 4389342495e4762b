// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/part_saver.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "base/units.h"
#include "checkpoint/checkpoint_test_helpers.h"
#include "checkpoint/staging_pool.h"
#include "testing/fault_files.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

using test::Dtype;
using test::Memory;
using test::memory_of;
using test::shard;
using test::whole;
using testing::FaultFiles;
using testing::FileFault;

constexpr std::uint64_t kWorld = 3;

Pieces pieces_of(std::uint64_t rank) {
  Pieces pieces{shard("rows", Dtype::f32, {10, 70}, 0, rank, kWorld), shard("few", Dtype::u8, {2, 3}, 0, rank, kWorld)};
  if (rank == 0) pieces.push_back(whole("scalar", Dtype::i64, {}));
  return pieces;
}

class PartSaverTest : public ::testing::Test {
 protected:
  PartSaverTest() { std::filesystem::create_directory(directory_); }

  static PartSaver::Options options(io::FileCalls& calls = io::system_files()) {
    return {.buffer_bytes = 1 << 20, .visible_deadline = std::chrono::milliseconds(50), .calls = &calls};
  }

  // All of a save, as its ranks would do it; discarded where it fails.
  Status save(PartSaver& saver, std::uint64_t seed, Exists exists = Exists::replace) {
    IC_TRY(const SaveTicket ticket, saver.begin(directory_, exists));
    Status done = write_and_commit(saver, ticket, seed);
    if (!done.ok()) (void)saver.discard(directory_, ticket);
    return done;
  }

  Status write_and_commit(PartSaver& saver, const SaveTicket& ticket, std::uint64_t seed) {
    std::vector<manifest::IndexReference> parts;
    Pieces held;
    for (std::uint64_t rank = 0; rank < kWorld; ++rank) {
      const Memory memory = memory_of(pieces_of(rank), seed);
      IC_TRY(SavedPart part, saver.write(directory_, ticket, rank, kWorld, memory.state()));
      parts.push_back(std::move(part.index));
      for (Piece& piece : pieces_of(rank)) held.push_back(std::move(piece));
    }
    return saver.commit(directory_, ticket, kWorld, std::move(parts), held);
  }

  // What keeps the checkpoint from being loaded with the bytes of `seed`; empty: nothing.
  [[nodiscard]] std::string problem(std::uint64_t seed) const {
    const auto opened = io::system_files().open_directory(directory_);
    const auto checkpoint = Checkpoint::open_directory(io::system_files(), *opened);
    if (!checkpoint.ok()) return checkpoint.error().to_string();
    Memory memory = memory_of(
        {whole("rows", Dtype::f32, {10, 70}), whole("few", Dtype::u8, {2, 3}), whole("scalar", Dtype::i64, {})}, 0);
    memory.overwrite();
    const auto report = (*checkpoint)->restore(memory.targets(), {});
    return report.ok() ? memory.difference(seed) : report.error().to_string();
  }

  [[nodiscard]] std::set<std::string> entries() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) names.insert(entry.path().filename());
    return names;
  }

  testing::TempDir temp_;
  std::string directory_ = (temp_.path() / "any name").string();
};

TEST_F(PartSaverTest, TheRateOfACallIsKept) {
  PartSaver saver({});
  const auto ticket = saver.begin(directory_, Exists::replace);
  ASSERT_TRUE(ticket.ok());
  const Memory memory = memory_of({whole("large", Dtype::u8, {36 * kMiB})}, 3);
  const Clock::TimePoint begin = steady_clock().now();
  const auto part = saver.write(directory_, *ticket, 0, 1, memory.state(), 40 * kMiB);
  ASSERT_TRUE(part.ok()) << part.error().to_string();
  // The last request, of 8 MiB at most, waits for those before it.
  EXPECT_GE(seconds_between(begin, steady_clock().now()), 0.6);
}

TEST_F(PartSaverTest, SavesInADirectoryOfAnyNameBesideOtherFiles) {
  std::ofstream(directory_ + "/meta.pt") << "of the caller";
  PartSaver saver(options());
  ASSERT_TRUE(save(saver, 1, Exists::error).ok());
  EXPECT_EQ(problem(1), "");
  EXPECT_EQ(entries(), (std::set<std::string>{"COMMIT", "meta.pt", "node-0.0.1.safetensors", "node-0.1.index.json",
                                              "node-1.0.1.safetensors", "node-1.1.index.json", "node-2.0.1.safetensors",
                                              "node-2.1.index.json"}));
}

// Somebody is always late.
class Late final : public io::LatencySignal {
 public:
  std::optional<io::LatencyReading> read(Clock::TimePoint) override {
    ++times_asked;
    return io::LatencyReading{std::chrono::milliseconds(9), std::chrono::milliseconds(1)};
  }
  unsigned times_asked = 0;
};

TEST_F(PartSaverTest, GivesWayToForegroundReadsAsACheckpointerDoes) {
  const auto late = std::make_shared<Late>();
  PartSaver::Options options = PartSaverTest::options();
  options.buffer_bytes = 8 << 20;
  options.foreground.node = false;
  options.foreground.signals = {late};
  options.foreground.rate_least = 1e9;
  PartSaver saver(options);
  const SaveTicket ticket = saver.begin(directory_, Exists::replace).value();
  const Memory memory = memory_of({whole("w", Dtype::u8, {3, 1024, 1024})}, 1);
  const auto part = saver.write(directory_, ticket, 0, 1, memory.state());
  ASSERT_TRUE(part.ok()) << part.error().to_string();
  EXPECT_GT(late->times_asked, 0U);
  EXPECT_GT(part->throttled.requests_cut, 0U);
}

TEST_F(PartSaverTest, ReplacesOnlyWhenAskedAndOnlyWhenTheNewOneIsDurable) {
  PartSaver saver(options());
  ASSERT_TRUE(save(saver, 1).ok());
  EXPECT_EQ(save(saver, 2, Exists::error).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(problem(1), "");
  const auto ticket = saver.begin(directory_, Exists::replace);
  ASSERT_TRUE(ticket.ok());
  EXPECT_EQ(problem(1), "");
  ASSERT_TRUE(write_and_commit(saver, *ticket, 2).ok());
  EXPECT_EQ(problem(2), "");
  EXPECT_EQ(entries().size(), 7U);
}

TEST_F(PartSaverTest, WhatAnInterruptedSaveLeftBehindGoesWithTheNextOne) {
  PartSaver saver(options());
  const auto interrupted = saver.begin(directory_, Exists::replace);
  const Memory memory = memory_of(pieces_of(0), 9);
  ASSERT_TRUE(saver.write(directory_, *interrupted, 0, kWorld, memory.state()).ok());
  ASSERT_TRUE(save(saver, 1).ok());
  EXPECT_EQ(problem(1), "");
  EXPECT_EQ(entries().size(), 7U);
  // Its writer goes on: it finds out, and harms nothing.
  EXPECT_FALSE(saver.write(directory_, *interrupted, 1, kWorld, memory.state()).ok());
  EXPECT_EQ(problem(1), "");
}

TEST_F(PartSaverTest, RefusesHolesOverlapsAndTwoDtypesByName) {
  PartSaver saver(options());
  const auto ticket = saver.begin(directory_, Exists::replace);
  const Memory memory = memory_of(pieces_of(0), 1);
  const auto part = saver.write(directory_, *ticket, 0, kWorld, memory.state());
  ASSERT_TRUE(part.ok());
  Pieces twice{whole("w", Dtype::u8, {4, 2}), shard("w", Dtype::u8, {4, 2}, 0, 1, 2)};
  Pieces other{shard("w", Dtype::u8, {4, 2}, 0, 0, 2), shard("w", Dtype::i8, {4, 2}, 0, 1, 2)};
  for (const Pieces& held : {Pieces{shard("w", Dtype::u8, {4, 2}, 0, 1, 2)}, twice, other}) {
    const Status refused = saver.commit(directory_, *ticket, kWorld, {part->index}, held);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(refused.error().to_string().find('w'), std::string::npos);
  }
  EXPECT_FALSE(entries().contains("COMMIT"));
}

TEST_F(PartSaverTest, ARankThatDoesNotSeeTheSaveSaysSo) {
  PartSaver saver(options());
  const Memory memory = memory_of(pieces_of(0), 1);
  const auto lost = saver.write(directory_, {1, "0123456789abcdef"}, 0, 1, memory.state());
  ASSERT_FALSE(lost.ok());
  EXPECT_NE(lost.error().hint().find("one file system"), std::string::npos);
}

// Each call fails once: what was there stays, and the next save works.
TEST_F(PartSaverTest, KeepsTheOldOneWhateverFails) {
  PartSaver good(options());
  ASSERT_TRUE(save(good, 1).ok());
  std::uint64_t failed = 0;
  std::uint64_t seed = 1;
  for (std::uint64_t call = 0;; ++call) {
    bool reached = false;
    FaultFiles files([&](std::uint64_t number, std::string_view, const std::string&) {
      if (number != call) return FileFault{};
      reached = true;
      return FileFault{.error = EIO};
    });
    PartSaver saver(options(files));
    const Status done = save(saver, seed + 1);
    if (!reached) {
      EXPECT_TRUE(done.ok());
      break;
    }
    // Tidying up may fail behind a commit, and a commit's own answer may get lost: the contents say which it is.
    const bool is_new = problem(seed + 1).empty();
    EXPECT_TRUE(is_new || problem(seed).empty()) << call;
    EXPECT_TRUE(is_new || !done.ok()) << call;
    if (is_new) ++seed;
    if (!done.ok()) ++failed;
    if (entries().size() == 7) continue;
    ASSERT_TRUE(save(good, ++seed).ok()) << call;  // what could not be removed goes with the next one
    EXPECT_EQ(problem(seed), "");
    EXPECT_EQ(entries().size(), 7U) << call;
  }
  EXPECT_GT(failed, 20U);
  ASSERT_TRUE(save(good, 99).ok());
  EXPECT_EQ(problem(99), "");
  EXPECT_EQ(entries().size(), 7U);
}

TEST(StagingPool, UsesMemoryAgainOnceNobodyHoldsIt) {
  StagingPool pool;
  auto first = pool.acquire(1 << 20);
  ASSERT_TRUE(first.ok());
  EXPECT_GE(first->memory.size(), 1U << 20);
  const auto* const address = first->memory.data();
  auto second = pool.acquire(1 << 20);
  ASSERT_TRUE(second.ok());
  EXPECT_NE(second->memory.data(), address);
  first->owner.reset();
  auto third = pool.acquire(1 << 19);
  ASSERT_TRUE(third.ok());
  EXPECT_EQ(third->memory.data(), address);
}

}  // namespace
}  // namespace infercluster::checkpoint
