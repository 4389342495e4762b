// SPDX-License-Identifier: Apache-2.0
// Servers of several ranks that save what changed and refer to earlier segments for the rest, killed at any call.
// INFERCLUSTER_CRASH_POINTS (20): how many points are tried.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "checkpoint/process_test_helpers.h"

namespace infercluster::checkpoint {
namespace {

using test::Dtype;
using test::entries_of;
using test::FaultFiles;
using test::FileFault;
using test::Memory;
using test::RankProcess;
using test::whole;

constexpr int kWorld = 4;
constexpr int kPages = 4;              // of each rank; page 0 changes with each step, the others never do
constexpr std::uint64_t kResting = 7;  // the others' content

Piece page_of(int rank, int page) {
  Piece piece = whole("kv/" + std::to_string(rank) + "." + std::to_string(page), Dtype::u8, {70'000});
  piece.sole = true;
  return piece;
}

// Of the ranks from `first` on.
struct Server {
  Memory changing;
  Memory resting;
  explicit Server(std::uint64_t content, int first, int ranks) {
    for (int rank = first; rank < first + ranks; ++rank) {
      changing.add(page_of(rank, 0), content);
      for (int page = 1; page < kPages; ++page) resting.add(page_of(rank, page), kResting);
    }
  }
  [[nodiscard]] State state(std::uint64_t content) const {
    State state = changing.state();
    for (HostPiece& piece : state.pieces) piece.generation = content;
    for (HostPiece& piece : resting.state().pieces) {
      piece.generation = 0;
      state.pieces.push_back(piece);
    }
    return state;
  }
};

struct Life {
  std::string root;
  std::string meeting;
  std::vector<std::uint64_t> steps;  // each is its content too
};

// It waits until each step is durable, and says "STEP durable, N referred, C calls" or the error.
RankProcess start_server(const Life& life, int rank, const FaultFiles::Plan& plan = {}) {
  return RankProcess([=](const RankProcess::Say& say) {
    set_log_level(LogLevel::off);
    FaultFiles calls(plan);
    auto ranks = exchange::open_in_directory(life.meeting, "job", {rank, kWorld},
                                             exchange::deadline_in(std::chrono::seconds(30)));
    if (!ranks.ok()) return say("exchange: " + ranks.error().to_string());
    Options options;
    options.exchange = ranks->get();
    options.calls = &calls;
    options.retention.keep = 1;
    options.call_deadline = options.write_deadline = std::chrono::seconds(20);
    auto checkpointer = Checkpointer::open(life.root, options);
    if (!checkpointer.ok()) return say("open: " + checkpointer.error().to_string());
    for (const std::uint64_t step : life.steps) {
      const Server server(step, rank, 1);
      const auto save = (*checkpointer)->save(step, server.state(step), {.wait = Wait::until_durable});
      if (!save.ok()) return say(save.error().to_string());
      (*checkpointer)->wait_idle();
      say(std::to_string(step) + " durable, " + std::to_string((*save)->report().referred) + " referred, " +
          std::to_string(calls.calls().size()) + " calls");
    }
  });
}

std::uint64_t calls_in(const std::string& line) {
  return std::stoul(line.substr(line.rfind("referred, ") + 10));
}

// What is wrong; empty: every committed step loads whole, as it was saved, and there is one.
std::string examine(const std::string& root) {
  auto checkpointer = Checkpointer::open(root, {});
  if (!checkpointer.ok()) return checkpointer.error().to_string();
  const auto steps = (*checkpointer)->steps();
  if (!steps.ok()) return steps.error().to_string();
  if (steps->empty()) return "there is no checkpoint";
  for (const std::uint64_t step : *steps) {
    const auto checkpoint = Checkpoint::open(io::system_files(), root, step);
    if (!checkpoint.ok()) return checkpoint.error().to_string();
    const auto verified = (*checkpoint)->verify({});
    if (!verified.ok()) return verified.error().to_string();
    Server server(step, 0, kWorld);
    server.changing.overwrite();
    server.resting.overwrite();
    std::vector<Target> targets = server.changing.targets();
    for (const Target& target : server.resting.targets()) targets.push_back(target);
    const auto report = (*checkpoint)->restore(targets, {});
    if (!report.ok()) return report.error().to_string();
    const std::string different = server.changing.difference(step) + server.resting.difference(kResting);
    if (!different.empty()) return "step " + std::to_string(step) + ": " + different;
  }
  return {};
}

// What each rank said of each step, by rank.
std::vector<std::vector<std::string>> live(const Life& life) {
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < kWorld; ++rank) ranks.push_back(start_server(life, rank));
  std::vector<std::vector<std::string>> said;
  for (RankProcess& rank : ranks) {
    auto& lines = said.emplace_back();
    for (std::size_t i = 0; i < life.steps.size(); ++i) lines.push_back(rank.line());
  }
  return said;
}

class PageCrash : public ::testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::off); }
  void TearDown() override { set_log_level(LogLevel::warning); }
};

void expect_durable(const std::vector<std::vector<std::string>>& said, const std::vector<std::uint64_t>& steps) {
  for (const auto& lines : said) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const std::string begin = std::to_string(steps[i]) + " durable, " + (i == 0 ? "0" : "3") + " referred";
      ASSERT_EQ(lines[i].find(begin), 0U) << lines[i];
    }
  }
}

// The victim dies at that call, everybody else when it is dead; then the servers start again.
void kill_all_at(int victim, std::uint64_t call) {
  SCOPED_TRACE("rank " + std::to_string(victim) + " dies at its call " + std::to_string(call));
  const testing::TempDir root;
  const testing::TempDir meeting;
  Life life{root.path().string(), meeting.path().string(), {1, 2, 3}};
  {
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < kWorld; ++rank) {
      ranks.push_back(start_server(life, rank, [=](std::uint64_t number, std::string_view, const std::string&) {
        if (rank == victim && number == call) ::raise(SIGKILL);
        return FileFault{};
      }));
    }
    while (!ranks[static_cast<std::size_t>(victim)].line().empty()) continue;
  }  // the others are killed here
  ASSERT_EQ(examine(life.root), "");
  life.steps = {11, 12};
  expect_durable(live(life), life.steps);
  ASSERT_EQ(examine(life.root), "");
  // Retention went on from where it was cut off: one step is left, and nothing that is no step.
  ASSERT_EQ(entries_of(life.root), std::set<std::string>{"step-12"});
}

TEST_F(PageCrash, KillNineOfAllAtAnyPointLeavesWholeCheckpoints) {
  const testing::TempDir root;
  const testing::TempDir meeting;
  const Life life{root.path().string(), meeting.path().string(), {1, 2, 3}};
  const auto said = live(life);
  expect_durable(said, life.steps);
  ASSERT_EQ(examine(life.root), "");
  ASSERT_EQ(entries_of(life.root), std::set<std::string>{"step-3"});
  const char* text = std::getenv("INFERCLUSTER_CRASH_POINTS");
  const std::uint64_t points = text == nullptr ? 20 : std::strtoul(text, nullptr, 10);
  for (std::uint64_t i = 0; i < points && !HasFatalFailure(); ++i) {
    const int victim = i % 4 == 3 ? static_cast<int>(1 + i / 4 % 3) : 0;
    const auto& lines = said[static_cast<std::size_t>(victim)];
    const std::uint64_t begin = calls_in(lines.front()) + 1;  // the first step is there
    const std::uint64_t calls = calls_in(lines.back()) - begin;
    ASSERT_GT(calls, 20U);
    kill_all_at(victim, begin + i * calls / points);
  }
}

}  // namespace
}  // namespace infercluster::checkpoint
