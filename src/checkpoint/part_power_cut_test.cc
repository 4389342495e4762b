// SPDX-License-Identifier: Apache-2.0
// The power goes after each single operation of saves in one directory that replace each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/log.h"
#include "checkpoint/checkpoint_test_helpers.h"
#include "checkpoint/part_saver.h"
#include "testing/power_cut_files.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

using test::Dtype;
using test::Memory;
using test::shard;
using test::whole;
using testing::PowerCutFiles;

constexpr std::uint64_t kWorld = 2;
constexpr std::uint64_t kSaves = 3;
constexpr auto kName = "any name";

Pieces pieces_of(std::uint64_t rank) {
  Pieces pieces{shard("w", Dtype::f32, {40, 70}, 0, rank, kWorld)};
  if (rank == 0) pieces.push_back(whole("b", Dtype::u8, {5'001}));
  return pieces;
}

// After which operation each of the saves, with seeds 1, 2 and so on, was durable.
std::vector<std::size_t> run(PowerCutFiles& files, const std::string& root) {
  const io::Directory parent = *files.open_directory(root);
  EXPECT_TRUE(files.make_directory(parent, kName).ok());
  const std::string directory = root + "/" + kName;
  PartSaver saver(PartSaver::Options{.buffer_bytes = 1 << 20, .calls = &files});
  std::vector<std::size_t> durable;
  for (std::uint64_t seed = 1; seed <= kSaves; ++seed) {
    const auto interrupted = saver.begin(directory, Exists::replace);
    const auto ticket = saver.begin(directory, Exists::replace);
    EXPECT_TRUE(interrupted.ok() && ticket.ok());
    std::vector<manifest::IndexReference> parts;
    Pieces held;
    for (std::uint64_t rank = 0; rank < kWorld; ++rank) {
      Memory memory;
      for (const Piece& piece : pieces_of(rank)) {
        memory.add(piece, seed);
        held.push_back(piece);
      }
      const auto left_behind = saver.write(directory, *interrupted, rank, kWorld, memory.state());
      auto part = saver.write(directory, *ticket, rank, kWorld, memory.state());
      EXPECT_TRUE(part.ok() && left_behind.ok());
      parts.push_back(part->index);
    }
    EXPECT_TRUE(saver.commit(directory, *ticket, kWorld, parts, held).ok());
    durable.push_back(files.operations());
  }
  return durable;
}

// The seed that the directory holds, all of it; 0: no checkpoint.
std::uint64_t seed_in(const std::string& directory) {
  const auto opened = io::system_files().open_directory(directory);
  if (!opened.ok()) return 0;
  const auto checkpoint = Checkpoint::open_directory(io::system_files(), *opened);
  if (!checkpoint.ok()) {
    EXPECT_EQ(checkpoint.error().code(), ErrorCode::not_found) << checkpoint.error().to_string();
    return 0;
  }
  Memory memory;
  memory.add(whole("w", Dtype::f32, {40, 70}), 0);
  memory.add(whole("b", Dtype::u8, {5'001}), 0);
  memory.overwrite();
  const auto report = (*checkpoint)->restore(memory.targets(), {});
  EXPECT_TRUE(report.ok()) << report.error().to_string();
  for (std::uint64_t seed = 1; seed <= kSaves; ++seed) {
    if (memory.difference(seed).empty()) return seed;
  }
  ADD_FAILURE() << "it is a mixture";
  return 0;
}

TEST(PartPowerCut, AfterAnyOperationLeavesTheOldOrTheNew) {
  constexpr std::uint64_t kSeeds = 6;
  set_log_level(LogLevel::off);
  const testing::TempDir live;
  PowerCutFiles files;
  const std::vector<std::size_t> durable = run(files, live.path().string());
  ASSERT_FALSE(HasFailure());
  const std::size_t count = files.operations();
  ASSERT_GT(count, 60U);
  if (std::filesystem::is_directory("/dev/shm")) {  // what is laid out is never synced, only read
    ASSERT_EQ(::setenv("TMPDIR", "/dev/shm", 1), 0);
  }
  for (std::size_t cut = 0; cut <= count; ++cut) {
    const auto expected = static_cast<std::uint64_t>(
        std::count_if(durable.begin(), durable.end(), [cut](std::size_t after) { return after <= cut; }));
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      const auto keep = PowerCutFiles::keep_of(seed);
      const testing::TempDir disk;
      files.lay_out(cut, keep, cut * 1000 + seed, disk.path());
      SCOPED_TRACE("power cut after operation " + std::to_string(cut) + " of " + std::to_string(count));
      EXPECT_GE(seed_in((disk.path() / kName).string()), expected);
      ASSERT_FALSE(HasFailure());
    }
  }
  set_log_level(LogLevel::warning);
}

}  // namespace
}  // namespace infercluster::checkpoint
