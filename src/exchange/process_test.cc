// SPDX-License-Identifier: Apache-2.0
// Ranks as processes: killed, stopped, started anew, and what a killed run left behind.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <set>

#include "exchange/exchange_test_helpers.h"
#include "testing/temp_dir.h"

namespace infercluster::exchange {
namespace {

using namespace std::chrono_literals;

constexpr auto kAmple = 60s;

// Dies at its n-th call on the shared directory, as by kill -9: nothing more is done, no destructor runs.
class DiesAt final : public SharedFiles {
 public:
  explicit DiesAt(int call) : left_(call) {}
  Result<std::string> read(const std::string& path, std::uint64_t limit) override {
    return count(), SharedFiles::read(path, limit);
  }
  Status create(const std::string& path, std::string_view bytes) override {
    return count(), SharedFiles::create(path, bytes);
  }
  Status rename(const std::string& from, const std::string& to) override {
    return count(), SharedFiles::rename(from, to);
  }
  Status link(const std::string& from, const std::string& to) override { return count(), SharedFiles::link(from, to); }
  Status remove(const std::string& path) override { return count(), SharedFiles::remove(path); }

 private:
  void count() {
    if (--left_ == 0) ::raise(SIGKILL);
  }
  int left_;
};

class ProcessTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Exchange>> open(int rank, int world, Clock::Duration within,
                                         std::shared_ptr<SharedFiles> files = std::make_shared<SharedFiles>()) const {
    return open_in_directory(directory_.path().string(), "job", {rank, world}, deadline_in(within), std::move(files));
  }

  // One whole life of a rank: what it saw, in one line.
  static std::string outcome(Result<std::unique_ptr<Exchange>> exchange, Clock::Duration within) {
    if (!exchange.ok()) return "open: " + exchange.error().message();
    const auto all = (*exchange)->gather("roots", std::to_string((*exchange)->rank()), deadline_in(within));
    if (!all.ok()) return "gather: " + all.error().message();
    std::string text = "all:";
    for (const std::string& value : *all) text += " " + value;
    return text;
  }

  RankProcess rank_process(int rank, int world, Clock::Duration within) const {
    return RankProcess([=, this](const RankProcess::Say& say) { say(outcome(open(rank, world, within), within)); });
  }

  testing::TempDir directory_;
};

TEST_F(ProcessTest, AFullRunLeavesNothing) {
  std::vector<RankProcess> ranks;
  for (const int rank : {3, 0, 2, 1}) ranks.push_back(rank_process(rank, 4, kAmple));
  for (RankProcess& rank : ranks) EXPECT_EQ(rank.line(), "all: 0 1 2 3");
  for (RankProcess& rank : ranks) EXPECT_EQ(rank.line(), "");  // it has ended
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

// A rank dies at every call in turn; the others end together, by its name or with all values; and a new run in the same
// place, over what the killed one left, sees only its own.
void die_at_every_call(const testing::TempDir& directory, int victim) {
  constexpr auto kShort = 500ms;
  constexpr int kCallsMax = 400;
  const auto open = [&](int rank, Clock::Duration within, std::shared_ptr<SharedFiles> files) {
    return open_in_directory(directory.path().string(), "job", {rank, 3}, deadline_in(within), std::move(files));
  };
  const auto life = [](Result<std::unique_ptr<Exchange>> exchange, const std::string& what, Clock::Duration within) {
    if (!exchange.ok()) return exchange.error().message();
    const auto all = (*exchange)->gather("roots", what, deadline_in(within));
    return all.ok() ? (*all)[0] + (*all)[1] + (*all)[2] : all.error().message();
  };
  bool survived = false;
  int call = 1;
  for (; call <= kCallsMax && !survived; call += call < 12 ? 1 : 3) {
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < 3; ++rank)
      ranks.emplace_back([&](const RankProcess::Say& say) {
        auto files = rank == victim ? std::make_shared<DiesAt>(call) : std::make_shared<SharedFiles>();
        const auto start = steady_clock().now();
        const std::string saw = life(open(rank, kShort, files), "old", kShort);
        if (steady_clock().now() - start > 2 * kShort + 2s) say("late: " + saw);
        say(saw);
      });
    std::set<std::string> outcomes;
    for (int rank = 0; rank < 3; ++rank) {
      const std::string saw = ranks[static_cast<std::size_t>(rank)].line();
      if (rank == victim) {
        survived = !saw.empty();
      } else {
        outcomes.insert(saw);
        const bool names_it = saw.starts_with("rank " + std::to_string(victim) + " ");
        EXPECT_TRUE(saw == "oldoldold" || names_it) << "call " << call << ": " << saw;
      }
    }
    EXPECT_EQ(outcomes.size(), 1U) << "call " << call << ": " << ::testing::PrintToString(outcomes);
    std::vector<RankProcess> again;
    for (int rank = 0; rank < 3; ++rank)
      again.emplace_back([&](const RankProcess::Say& say) {
        say(life(open(rank, kAmple, std::make_shared<SharedFiles>()), "new", kAmple));
      });
    for (RankProcess& rank : again) EXPECT_EQ(rank.line(), "newnewnew") << "call " << call;
  }
  EXPECT_TRUE(survived);
  EXPECT_GT(call, 15);
}

TEST_F(ProcessTest, AnyRankMayDieAtAnyCall) {
  die_at_every_call(directory_, 1);
}

TEST_F(ProcessTest, RankZeroMayDieAtAnyCall) {
  die_at_every_call(directory_, 0);
}

TEST_F(ProcessTest, AStoppedRankIsNamedAndLearnsTheCause) {
  constexpr auto kShort = 800ms;
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&](const RankProcess::Say& say) {
      auto exchange = open(rank, 3, kAmple);
      if (rank == 1) ::raise(SIGSTOP);
      say(outcome(std::move(exchange), kShort));
    });
  const std::string told = "gather: rank 1 did not come to \"roots\" before the deadline";
  EXPECT_EQ(ranks[0].line(), told);
  EXPECT_EQ(ranks[2].line(), told);
  ranks[1].signal(SIGCONT);
  EXPECT_EQ(ranks[1].line(), told);
}

TEST_F(ProcessTest, ARankThatIsStartedAnewWhileOthersWaitTakesItsPlace) {
  std::vector<RankProcess> ranks;
  ranks.push_back(rank_process(0, 3, kAmple));
  {
    const RankProcess first = rank_process(1, 3, kAmple);
    while (!std::filesystem::exists(directory_.path() / "job/hello/1")) std::this_thread::yield();
  }  // killed
  ranks.push_back(rank_process(1, 3, kAmple));
  ranks.push_back(rank_process(2, 3, kAmple));
  for (RankProcess& rank : ranks) EXPECT_EQ(rank.line(), "all: 0 1 2");
}

TEST_F(ProcessTest, ASecondProcessAsTheSameRankEndsTheFirst) {
  RankProcess first = rank_process(1, 2, kAmple);
  while (!std::filesystem::exists(directory_.path() / "job/hello/1")) std::this_thread::yield();
  RankProcess second = rank_process(1, 2, kAmple);
  EXPECT_EQ(first.line(), "open: another process came as rank 1 of the same job");
  RankProcess leader = rank_process(0, 2, kAmple);
  EXPECT_EQ(second.line(), "all: 0 1");
  EXPECT_EQ(leader.line(), "all: 0 1");
}

TEST_F(ProcessTest, LeftoversOfALargerWorldAreNoAnswers) {
  constexpr auto kShort = 500ms;
  {
    std::vector<RankProcess> killed;
    for (int rank = 0; rank < 5; ++rank)
      killed.emplace_back([&](const RankProcess::Say& say) {
        auto exchange = open(rank, 5, kAmple);
        (void)(*exchange)->gather("roots", "old", deadline_in(kAmple));
        say("open");
        ::pause();
      });
    for (RankProcess& rank : killed) EXPECT_EQ(rank.line(), "open");
  }
  EXPECT_FALSE(std::filesystem::is_empty(directory_.path() / "job"));
  // Rank 2 does not come: what it left must not stand for it.
  {
    std::vector<RankProcess> ranks;
    for (const int rank : {0, 1}) ranks.push_back(rank_process(rank, 3, kShort));
    for (RankProcess& rank : ranks) EXPECT_EQ(rank.line(), "open: rank 2 did not come to \"open\" before the deadline");
  }
  std::vector<RankProcess> ranks;
  for (const int rank : {1, 2, 0}) ranks.push_back(rank_process(rank, 3, kAmple));
  for (RankProcess& rank : ranks) EXPECT_EQ(rank.line(), "all: 0 1 2");
}

}  // namespace
}  // namespace infercluster::exchange
