// SPDX-License-Identifier: Apache-2.0
// The power goes after each single operation of saves, replacements and prunings.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "base/log.h"
#include "checkpoint/checkpoint_test_helpers.h"
#include "checkpoint/checkpointer.h"
#include "exchange/exchange_test_helpers.h"
#include "exchange/store.h"
#include "testing/power_cut_files.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

using test::device_of_state;
using test::Dtype;
using test::Memory;
using test::shard;
using test::whole;
using testing::PowerCutFiles;

Memory model(std::uint64_t seed, std::uint64_t rank, std::uint64_t world) {
  Memory memory;
  memory.add(shard("w", Dtype::f32, {40, 70}, 0, rank, world), seed);
  memory.add(whole("b", Dtype::u8, {5'001}), seed);
  return memory;
}

// One save that became durable, and after which operation.
struct Durable {
  std::uint64_t step = 0;
  std::uint64_t seed = 0;
  std::size_t after = 0;
};

// Checks one disk: every step that opens has all its bytes, of a seed that was saved under it; and what was durable is
// there, unless it was pruned or replaced since.
void check(const std::string& root, const std::vector<Durable>& log, std::size_t cut, std::uint64_t keep) {
  std::map<std::uint64_t, std::uint64_t> seeds;  // of durable steps, the last
  std::uint64_t highest = 0;
  for (const Durable& durable : log) {
    if (durable.after > cut) continue;
    seeds[durable.step] = durable.seed;
    highest = std::max(highest, durable.step);
  }
  auto checkpointer = Checkpointer::open(root, {});
  ASSERT_TRUE(checkpointer.ok());
  const auto newest = (*checkpointer)->latest();
  ASSERT_TRUE(newest.ok()) << newest.error().to_string();
  if (highest > 0) {
    ASSERT_TRUE(*newest) << "nothing is left";
    EXPECT_GE(**newest, highest);
  }
  const auto steps = (*checkpointer)->steps();
  ASSERT_TRUE(steps.ok());
  EXPECT_GE(steps->size(), std::min<std::size_t>(seeds.size(), keep));
  for (const std::uint64_t step : *steps) {
    auto checkpoint = Checkpoint::open(io::system_files(), root, step);
    ASSERT_TRUE(checkpoint.ok()) << "step " << step << ": " << checkpoint.error().to_string();
    Memory memory = model(0, 0, 1);
    memory.overwrite();
    const auto report = (*checkpoint)->restore(memory.targets(), {});
    ASSERT_TRUE(report.ok()) << "step " << step << ": " << report.error().to_string();
    bool found = false;
    for (const Durable& durable : log) found |= durable.step == step && memory.difference(durable.seed).empty();
    EXPECT_TRUE(found) << "step " << step << " is a mixture";
    if (seeds.contains(step)) {
      // At least as new as what was durable: seeds grow.
      bool old = false;
      for (const Durable& durable : log) {
        old |= durable.step == step && durable.seed < seeds[step] && memory.difference(durable.seed).empty();
      }
      EXPECT_FALSE(old) << "step " << step << " fell back to what it replaced";
    }
  }
}

// Saves by so many ranks, each with a seed of its own; returns when each was durable.
std::vector<Durable> run(PowerCutFiles& files, const std::string& root, int world, std::uint64_t keep) {
  const std::vector<std::pair<std::uint64_t, Exists>> saves{
      {10, Exists::error}, {20, Exists::error}, {30, Exists::error}, {20, Exists::replace}, {20, Exists::replace}};
  std::vector<Durable> log(saves.size());
  const auto store = std::make_shared<exchange::MemoryStore>();
  exchange::run_ranks(exchange::ranks_of(world), [&](int rank) {
    auto ranks = exchange::open_over_store(store, {rank, world}, exchange::deadline_in(std::chrono::seconds(60)));
    ASSERT_TRUE(ranks.ok());
    Options options;
    options.calls = &files;
    options.exchange = ranks->get();
    options.retention.keep = keep;
    auto checkpointer = Checkpointer::open(root, options);
    for (std::size_t i = 0; i < saves.size(); ++i) {
      const Memory memory = model(i + 1, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(world));
      const auto save = (*checkpointer)->save(saves[i].first, memory.state(), {Wait::until_durable, saves[i].second});
      ASSERT_TRUE(save.ok()) << save.error().to_string();
      if (rank == 0) log[i] = {saves[i].first, i + 1, files.operations()};
      (*checkpointer)->wait_idle();
    }
  });
  return log;
}

class PowerCut : public test::OnEachDevice {
 protected:
  void cut_after_any_operation(int world);
};

void PowerCut::cut_after_any_operation(int world) {
  constexpr std::uint64_t kKeep = 2;
  constexpr std::uint64_t kSeeds = 4;
  set_log_level(LogLevel::off);
  const testing::TempDir live;
  PowerCutFiles files;
  const std::vector<Durable> log = run(files, live.path().string(), world, kKeep);
  device_of_state() = -1;  // what the disk has is the same wherever it is loaded to
  const std::size_t count = files.operations();
  ASSERT_GT(count, 100U);
  // What is laid out is never synced, only read.
  const bool in_memory = std::filesystem::is_directory("/dev/shm");
  if (in_memory) {
    ASSERT_EQ(::setenv("TMPDIR", "/dev/shm", 1), 0);
  }
  for (std::size_t cut = 0; cut <= count; ++cut) {
    for (std::uint64_t seed = 0; seed < kSeeds + 2; ++seed) {
      const auto keep = PowerCutFiles::keep_of(seed);
      const testing::TempDir disk;
      files.lay_out(cut, keep, cut * 1000 + seed, disk.path());
      SCOPED_TRACE("power cut after operation " + std::to_string(cut) + " of " + std::to_string(count) + ", seed " +
                   std::to_string(cut * 1000 + seed));
      check(disk.path().string(), log, cut, kKeep);
      if (HasFatalFailure() || HasNonfatalFailure()) return;
    }
  }
  set_log_level(LogLevel::warning);
}

TEST_P(PowerCut, AfterAnyOperationOfOneRankLeavesWholeCheckpointsAlone) {
  cut_after_any_operation(1);
}
TEST_P(PowerCut, AfterAnyOperationOfThreeRanksLeavesWholeCheckpointsAlone) {
  cut_after_any_operation(3);
}

INSTANTIATE_TEST_SUITE_P(State, PowerCut, test::every_device(), test::device_name);

}  // namespace
}  // namespace infercluster::checkpoint
