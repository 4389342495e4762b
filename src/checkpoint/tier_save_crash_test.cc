// SPDX-License-Identifier: Apache-2.0
// Jobs of two processes with a fast tier, killed at any call on the way from the call to the root.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>

#include "checkpoint/process_test_helpers.h"

namespace infercluster::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::FaultFiles;
using test::FileFault;
using test::Memory;
using test::process_model;
using test::RankProcess;

constexpr int kWorld = 2;

class TierSaveCrash : public ::testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::off); }
  void TearDown() override { set_log_level(LogLevel::warning); }

  std::string root() const { return temp_.file("root"); }
  std::string fast() const { return temp_.file("fast"); }
  std::string meeting() const { return temp_.file("meeting"); }

  Options options_of(exchange::Exchange& ranks, io::FileCalls& calls) const {
    Options options;
    options.exchange = &ranks;
    options.calls = &calls;
    options.call_deadline = options.write_deadline = std::chrono::seconds(10);
    options.fast = FastTier{.path = fast(), .extent_bytes = manifest::kBlockBytes};
    return options;
  }
  // Says "fast", then "durable" (or the error), of step 2 of seed 2 in the place of what is there; then its calls.
  RankProcess start(int rank, FaultFiles::Plan plan) const {
    return RankProcess([=, this](const RankProcess::Say& say) {
      FaultFiles calls(plan);
      auto ranks = exchange::open_in_directory(meeting(), "job", {rank, kWorld},
                                               exchange::deadline_in(std::chrono::seconds(30)));
      if (!ranks.ok()) return say("exchange: " + ranks.error().to_string());
      auto checkpointer = Checkpointer::open(root(), options_of(**ranks, calls));
      if (!checkpointer.ok()) return say("open: " + checkpointer.error().to_string());
      const Memory memory = process_model(2, rank, kWorld);
      const auto save = (*checkpointer)->save(2, memory.state(), {Wait::until_staged, Exists::replace});
      if (!save.ok()) return say(save.error().to_string());
      const Status first = (*save)->wait(Tier::fast);
      say(first.ok() ? "fast" : first.error().to_string());
      const Status last = (*save)->wait();
      say(last.ok() ? "durable" : last.error().to_string());
      (*checkpointer)->wait_idle();
      say(std::to_string(calls.calls().size()));
    });
  }
  // Saves step 2 of seed 1, on both tiers.
  void begin_anew() const {
    for (const std::string& folder : {root(), fast(), meeting()}) {
      fs::remove_all(folder);
      fs::create_directory(folder);
    }
    auto single = exchange::make_single();
    auto checkpointer = Checkpointer::open(root(), options_of(*single, io::system_files()));
    ASSERT_TRUE(checkpointer.ok()) << checkpointer.error().to_string();
    const Memory memory = process_model(1, 0, 1);
    ASSERT_TRUE((*checkpointer)->save(2, memory.state(), {Wait::until_durable}).ok());
    (*checkpointer)->wait_idle();
  }
  static std::string seed_of(const Checkpoint& checkpoint) {
    Memory memory = process_model(0, 0, 1);
    memory.overwrite();
    const auto report = checkpoint.restore(memory.targets(), {});
    if (!report.ok()) return report.error().to_string();
    for (const std::uint64_t seed : {1U, 2U}) {
      if (memory.difference(seed).empty()) return std::to_string(seed);
    }
    return "bytes of more than one save";
  }
  // The seed that the next job, of one rank, loads; then what the root has in the end, without the fast tier.
  std::pair<std::string, std::string> loaded_and_drained() const {
    auto single = exchange::make_single();
    std::pair<std::string, std::string> found;
    {
      auto checkpointer = Checkpointer::open(root(), options_of(*single, io::system_files()));
      if (!checkpointer.ok()) return {checkpointer.error().to_string(), ""};
      const auto place = (*checkpointer)->choose(std::nullopt);
      if (!place.ok() || !*place) return {place.ok() ? "nothing" : place.error().to_string(), ""};
      const auto checkpoint = (*checkpointer)->open_place(**place);
      found.first = checkpoint.ok() ? seed_of(**checkpoint) : checkpoint.error().to_string();
      (*checkpointer)->wait_idle();
    }
    const auto checkpoint = Checkpoint::open(io::system_files(), root(), 2);
    found.second = checkpoint.ok() ? seed_of(**checkpoint) : checkpoint.error().to_string();
    return found;
  }

  testing::TempDir temp_;
};

// A replacement: what was there, or the new, and the new from the moment that it is said to be on the fast tier.
TEST_F(TierSaveCrash, KillNineAtAnyCallLeavesTheOldOrTheNewAndTheNextJobDrainsIt) {
  begin_anew();
  std::vector<std::uint64_t> calls;
  {
    RankProcess zero = start(0, nullptr);
    RankProcess one = start(1, nullptr);
    for (RankProcess* rank : {&zero, &one}) {
      ASSERT_EQ(rank->line(), "fast");
      ASSERT_EQ(rank->line(), "durable");
      calls.push_back(std::stoull(rank->line()));
    }
  }
  ASSERT_EQ(loaded_and_drained(), std::pair(std::string("2"), std::string("2")));
  std::uint64_t drained_later = 0;
  for (const int victim : {0, 1}) {
    for (std::uint64_t call = 0; call < calls[static_cast<std::size_t>(victim)]; call += 3) {
      SCOPED_TRACE("rank " + std::to_string(victim) + " killed at call " + std::to_string(call));
      begin_anew();
      const auto kill = [call](std::uint64_t number, std::string_view, const std::string&) {
        if (number == call) ::raise(SIGKILL);
        return FileFault{};
      };
      bool was_fast = false;
      bool was_durable = false;
      {
        RankProcess dying = start(victim, kill);
        RankProcess other = start(1 - victim, nullptr);
        for (std::string line = dying.line(); !line.empty(); line = dying.line()) {
          was_fast |= line == "fast";
          was_durable |= line == "durable";
        }
      }  // the other is killed too, wherever it is
      const auto at_root = Checkpoint::open(io::system_files(), root(), 2);
      ASSERT_TRUE(at_root.ok()) << at_root.error().to_string();
      const std::string before = seed_of(**at_root);
      ASSERT_TRUE(before == "1" || before == "2") << before;
      ASSERT_TRUE(!was_durable || before == "2");
      const auto [loaded, root_in_the_end] = loaded_and_drained();
      ASSERT_TRUE(!was_fast || loaded == "2");
      ASSERT_TRUE(loaded == "1" || loaded == "2") << loaded;
      ASSERT_EQ(root_in_the_end, loaded);
      if (before == "1" && loaded == "2") ++drained_later;
    }
  }
  EXPECT_GT(drained_later, 10U);
}

}  // namespace
}  // namespace infercluster::checkpoint
