// SPDX-License-Identifier: Apache-2.0
// Saves that are killed at any call. INFERCLUSTER_CRASH_POINTS (20): how many points are tried.
#include <gtest/gtest.h>

#include <cstdlib>

#include "checkpoint/process_test_helpers.h"

namespace infercluster::checkpoint {
namespace {

using test::entries_of;
using test::examine;
using test::FaultFiles;
using test::FileFault;
using test::holds;
using test::Job;
using test::OneSave;
using test::RankProcess;
using test::start_rank;

std::size_t crash_points() {
  const char* text = std::getenv("INFERCLUSTER_CRASH_POINTS");
  return text == nullptr ? 20 : std::strtoul(text, nullptr, 10);
}

FaultFiles::Plan signal_at(std::uint64_t call, int signal) {
  return [=](std::uint64_t number, std::string_view, const std::string&) {
    if (number == call) ::raise(signal);
    return FileFault{};
  };
}

class Crash : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_log_level(LogLevel::off); }
  void TearDown() override { set_log_level(LogLevel::warning); }

  // One life of all ranks; what each said.
  static std::vector<std::string> run(const Job& job) {
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < job.world; ++rank) ranks.push_back(start_rank(job, rank));
    std::vector<std::string> lines;
    for (RankProcess& rank : ranks) {
      for (std::size_t i = 0; i <= job.saves.size(); ++i) lines.push_back(rank.line());
    }
    return lines;
  }
  // The first checkpoint, by one process.
  static void save_first(Job job, const std::vector<OneSave>& saves) {
    job.world = 1;
    job.saves = saves;
    const std::vector<std::string> lines = run(job);
    for (std::size_t i = 0; i < saves.size(); ++i) ASSERT_EQ(lines[i], std::to_string(saves[i].step) + " durable");
  }
};

// The victim dies at that call, everybody else when it is dead; a new run saves the step again.
void kill_all_at(int victim, std::uint64_t call, int device) {
  const testing::TempDir temp;
  const testing::TempDir meeting;
  Job job{
      .root = temp.path().string(), .meeting = meeting.path().string(), .saves = {{2, 2}, {3, 3}}, .device = device};
  SCOPED_TRACE("rank " + std::to_string(victim) + " dies at its call " + std::to_string(call));
  const std::vector<OneSave> all{{1, 1}, {2, 2}, {3, 3}, {3, 4}};
  {
    Job first = job;
    first.world = 1;
    first.saves = {all[0]};
    RankProcess process = start_rank(first, 0);
    ASSERT_EQ(process.line(), "1 durable");
    process.line();
  }
  {
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < job.world; ++rank)
      ranks.push_back(start_rank(job, rank, rank == victim ? signal_at(call, SIGKILL) : FaultFiles::Plan{}));
    while (!ranks[static_cast<std::size_t>(victim)].line().empty()) continue;
  }  // the others are killed here
  ASSERT_EQ(examine(job.root, all), "");
  job.saves = {{3, 4, Exists::replace}};
  {
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < job.world; ++rank) ranks.push_back(start_rank(job, rank));
    for (RankProcess& rank : ranks) ASSERT_EQ(rank.line(), "3 durable");
    for (RankProcess& rank : ranks) ASSERT_NE(rank.line(), "");
  }
  ASSERT_EQ(examine(job.root, all), "");
  ASSERT_TRUE(holds(job.root, 3, 4));
  for (const std::string& name : entries_of(job.root)) ASSERT_EQ(name.find("step-"), 0U) << name;
}

TEST_P(Crash, KillNineOfAllAtAnyPointLeavesWholeCheckpoints) {
  const testing::TempDir temp;
  const testing::TempDir meeting;
  const Job job{.root = temp.path().string(),
                .meeting = meeting.path().string(),
                .saves = {{2, 2}, {3, 3}},
                .device = GetParam()};
  const std::vector<std::string> lines = run(job);
  const std::uint64_t calls_of_first = std::stoul(lines[2]);
  const std::uint64_t calls_of_other = std::stoul(lines[5]);
  ASSERT_GT(calls_of_first, 50U);
  const std::size_t points = crash_points();
  for (std::size_t i = 0; i < points && !HasFatalFailure(); ++i) {
    const bool first = i % 4 != 3;
    const std::uint64_t calls = first ? calls_of_first : calls_of_other;
    kill_all_at(first ? 0 : static_cast<int>(1 + i / 4 % 3), 1 + i * (calls - 1) / points, GetParam());
  }
  if (points < 200) return;
  for (std::uint64_t call = 1; call < calls_of_first && !HasFatalFailure(); ++call) kill_all_at(0, call, GetParam());
}

// One dies, the others end by their deadline, all with the same first cause; then the job starts again.
TEST_P(Crash, WhenOneIsKilledTheOthersEndTogetherAndSayWhom) {
  for (const int victim : {0, 2}) {
    const testing::TempDir temp;
    const testing::TempDir meeting;
    Job job{.root = temp.path().string(), .meeting = meeting.path().string(), .saves = {{2, 2}}, .device = GetParam()};
    job.deadline = std::chrono::milliseconds(3000);
    save_first(job, {{1, 1}});
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < job.world; ++rank)
      ranks.push_back(start_rank(job, rank, rank == victim ? signal_at(12, SIGKILL) : FaultFiles::Plan{}));
    std::set<std::string> causes;
    for (int rank = 0; rank < job.world; ++rank) {
      if (rank != victim) causes.insert(ranks[static_cast<std::size_t>(rank)].line());
    }
    EXPECT_EQ(causes.size(), 1U);
    EXPECT_NE(causes.begin()->find(std::to_string(victim)), std::string::npos) << *causes.begin();
    EXPECT_EQ(causes.begin()->find("2 durable"), std::string::npos);
    EXPECT_EQ(examine(job.root, {{1, 1}}), "");
  }
}

// A rollback: steps 900 and 1000 are saved again. A kill at any call leaves the old or the new of each.
TEST_P(Crash, AReplacementLeavesTheOldOrTheNew) {
  const testing::TempDir counted;
  const testing::TempDir meeting;
  const std::vector<OneSave> old{{800, 1}, {900, 2}, {1000, 3}};
  const std::vector<OneSave> fresh{{900, 4, Exists::replace}, {1000, 5, Exists::replace}};
  Job job{
      .root = counted.path().string(), .meeting = meeting.path().string(), .world = 1, .keep = 0, .device = GetParam()};
  save_first(job, old);
  job.saves = fresh;
  const std::uint64_t calls = std::stoul(run(job)[2]);
  ASSERT_GT(calls, 60U);
  const std::uint64_t step = std::max<std::uint64_t>(1, calls / (2 * crash_points()));
  for (std::uint64_t call = 1; call < calls; call += step) {
    const testing::TempDir temp;
    job.root = temp.path().string();
    save_first(job, old);
    job.saves = fresh;
    {
      RankProcess rank = start_rank(job, 0, signal_at(call, SIGKILL));
      while (!rank.line().empty()) continue;
    }
    SCOPED_TRACE("killed at call " + std::to_string(call) + " of " + std::to_string(calls));
    ASSERT_TRUE(holds(job.root, 800, 1));
    ASSERT_TRUE(holds(job.root, 900, 2) || holds(job.root, 900, 4));
    ASSERT_TRUE(holds(job.root, 1000, 3) || holds(job.root, 1000, 5));
    ASSERT_EQ(run(job)[0], "900 durable");
    ASSERT_TRUE(holds(job.root, 900, 4));
    ASSERT_TRUE(holds(job.root, 1000, 5));
  }
}

// Fence: a writer is stopped at any call, others sweep, save the same step, replace it and prune; then it goes on.
TEST_P(Crash, AStoppedWriterHarmsNothingWhenItGoesOn) {
  const testing::TempDir counted;
  const testing::TempDir meeting;
  Job job{.root = counted.path().string(),
          .meeting = meeting.path().string(),
          .world = 1,
          .keep = 2,
          .saves = {{5, 1}},
          .device = GetParam()};
  const std::uint64_t calls = std::stoul(run(job)[1]);
  ASSERT_GT(calls, 20U);
  const std::uint64_t step = std::max<std::uint64_t>(1, calls / crash_points());
  for (std::uint64_t call = 1; call < calls; call += step) {
    const testing::TempDir temp;
    job.root = temp.path().string();
    SCOPED_TRACE("stopped at call " + std::to_string(call) + " of " + std::to_string(calls));
    job.saves = {{5, 1}};
    bool stopped = false;
    RankProcess late = start_rank(job, 0, signal_at(call, SIGSTOP));
    late.wait_until_stopped();
    stopped = true;
    const testing::TempDir elsewhere;
    Job other = job;
    other.meeting = elsewhere.path().string();
    other.saves = {{5, 2, Exists::replace}, {6, 6}, {5, 3, Exists::replace}};
    const std::vector<std::string> lines = run(other);
    ASSERT_TRUE(stopped);
    EXPECT_EQ(lines[0], "5 durable");
    EXPECT_EQ(lines[2], "5 durable");
    late.signal(SIGCONT);
    late.line();
    late.line();
    ASSERT_EQ(examine(job.root, {{5, 3}, {6, 6}}), "");
    ASSERT_TRUE(holds(job.root, 5, 3));
    ASSERT_TRUE(holds(job.root, 6, 6));
  }
}

INSTANTIATE_TEST_SUITE_P(State, Crash, test::every_device(), test::device_name);

}  // namespace
}  // namespace infercluster::checkpoint
