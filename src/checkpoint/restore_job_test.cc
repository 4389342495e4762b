// SPDX-License-Identifier: Apache-2.0
// Restores by four processes of one node: each block is read once among them, and what happens to one happens to all.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <numeric>

#include "checkpoint/process_test_helpers.h"
#include "checkpoint/restore_together.h"
#include "checkpoint/saved_test_helpers.h"

namespace infercluster::checkpoint {
namespace {

using namespace std::chrono_literals;
using test::Dtype;
using test::Memory;
using test::RankProcess;
using test::shard;
using test::whole;

constexpr std::uint64_t kWorld = 4;
constexpr std::uint64_t kSeed = 7;

Pieces saved_pieces(std::uint64_t rank, std::uint64_t world) {
  return {shard("rows", Dtype::f32, {1030, 1000}, 0, rank, world), whole("alike", Dtype::u8, {9'000'001}),
          shard("columns", Dtype::bf16, {300, 4000}, 1, rank, world), whole("sparse", Dtype::u8, {200, 40'000}),
          whole("scalar", Dtype::i64, {})};
}

// Every fifth row: windows of their own, more of them than there are buffers.
Pieces sparse_rows() {
  Pieces pieces;
  for (std::uint64_t row = 0; row < 200; row += 5) {
    pieces.push_back(whole("sparse", Dtype::u8, {200, 40'000}));
    pieces.back().box = {{row, 0}, {1, 40'000}};
  }
  return pieces;
}

// A job's exchange, with something that happens to this rank when it has come so far.
class Interrupted final : public exchange::Exchange {
 public:
  enum class At : std::uint8_t { nothing, check, decided, last };
  Interrupted(exchange::Exchange& below, At at, int signal) : below_(below), at_(at), signal_(signal) {}

  [[nodiscard]] int rank() const override { return below_.rank(); }
  [[nodiscard]] int world() const override { return below_.world(); }
  Result<std::vector<std::string>> gather(std::string_view tag, std::string_view bytes,
                                          exchange::Deadline deadline) override {
    return below_.gather(tag, bytes, deadline);
  }
  Result<std::string> decide(std::string_view tag, std::string_view bytes, const Decision& decision,
                             exchange::Deadline deadline) override {
    auto decided = below_.decide(tag, bytes, decision, deadline);
    happen(At::decided);
    return decided;
  }
  Status agree(std::string_view tag, std::string_view bytes, exchange::Deadline deadline) override {
    return below_.agree(tag, bytes, deadline);
  }
  Status agree_watched(std::string_view tag, std::string_view bytes, const Watch& watch,
                       exchange::Deadline deadline) override {
    happen(At::last);
    return below_.agree_watched(tag, bytes, watch, deadline);
  }
  Error abort(const Error& error, std::uint64_t bytes, exchange::Deadline deadline) override {
    return below_.abort(error, bytes, deadline);
  }
  Status check() override {
    happen(At::check);
    return below_.check();
  }
  [[nodiscard]] std::optional<exchange::Cause> cause() const override { return below_.cause(); }
  Result<std::unique_ptr<Exchange>> nested(std::uint64_t number) override { return below_.nested(number); }

 private:
  void happen(At at) {
    if (at == at_) ::raise(signal_);
  }
  exchange::Exchange& below_;
  const At at_;
  const int signal_;
};
using At = Interrupted::At;

struct Outcome {
  std::string text;  // "whole", what differs, or the error
  std::uint64_t read = 0;
  std::uint64_t received = 0;
};

class RestoreJob : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::off);
    test::save(root(), &saved_pieces, {.step = 1, .world = kWorld, .seed = kSeed});
  }
  void TearDown() override { set_log_level(LogLevel::warning); }
  [[nodiscard]] std::string root() const { return temp_.path().string(); }

  [[nodiscard]] RankProcess start(int rank, const Pieces& pieces, At at = At::nothing, int signal = 0) const {
    return RankProcess([=, this](const RankProcess::Say& say) {
      auto ranks =
          exchange::open_in_directory(meeting_.path().string(), "job", {rank, kWorld}, exchange::deadline_in(30s));
      if (!ranks.ok()) return say(ranks.error().to_string());
      Interrupted interrupted(**ranks, at, signal);
      const auto checkpoint = test::open_saved(root(), 1);
      Memory memory;
      for (const Piece& piece : pieces) memory.add(piece, 0, false);
      const auto report = restore_together(*checkpoint, memory.targets(), {},
                                           {interrupted, exchange::deadline_in(met_), exchange::deadline_in(done_)});
      if (!report.ok()) return say(report.error().to_string());
      const std::string difference = memory.difference(kSeed);
      say(difference.empty() ? "whole" : difference);
      say(std::to_string(report->bytes_read));
      say(std::to_string(report->bytes_received));
    });
  }
  static Outcome outcome_of(RankProcess& rank) {
    Outcome outcome{rank.line()};
    const std::string read = rank.line();
    const std::string received = rank.line();
    if (!read.empty()) outcome = {outcome.text, std::stoull(read), std::stoull(received)};
    return outcome;
  }
  std::vector<Outcome> run(const std::vector<Pieces>& wanted) const {
    std::vector<RankProcess> ranks;
    for (std::size_t rank = 0; rank < wanted.size(); ++rank)
      ranks.push_back(start(static_cast<int>(rank), wanted[rank]));
    std::vector<Outcome> outcomes;
    for (RankProcess& rank : ranks) outcomes.push_back(outcome_of(rank));
    return outcomes;
  }
  // What one rank alone that wants it all would read.
  [[nodiscard]] std::uint64_t unique_bytes(const std::vector<Pieces>& wanted) const {
    Memory memory;
    for (const Pieces& pieces : wanted) {
      for (const Piece& piece : pieces) memory.add(piece, 0, false);
    }
    return test::open_saved(root(), 1)->restore(memory.targets(), {})->bytes_read;
  }
  void expect_read_once(const std::vector<Pieces>& wanted) const {
    std::uint64_t read = 0;
    for (const Outcome& outcome : run(wanted)) {
      EXPECT_EQ(outcome.text, "whole");
      read += outcome.read;
    }
    EXPECT_EQ(read, unique_bytes(wanted));
  }
  // `victim` meets its end where `at` says; the others get one text, which has `part`, well before the deadline.
  void expect_same_end(int victim, At at, const std::string& part) const {
    const Clock::TimePoint begin = steady_clock().now();
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < static_cast<int>(kWorld); ++rank) {
      ranks.push_back(start(rank, saved_pieces(0, 1), rank == victim ? at : At::nothing, SIGKILL));
    }
    std::set<std::string> texts;
    for (int rank = 0; rank < static_cast<int>(kWorld); ++rank) {
      const std::string text = outcome_of(ranks[static_cast<std::size_t>(rank)]).text;
      if (rank != victim) texts.insert(text);
    }
    ASSERT_EQ(texts.size(), 1U) << *texts.begin();
    EXPECT_NE(texts.begin()->find(part), std::string::npos) << *texts.begin();
    EXPECT_LT(steady_clock().now() - begin, 20s);
  }

  testing::TempDir temp_;
  testing::TempDir meeting_;
  Clock::Duration met_ = 30s;
  Clock::Duration done_ = 30s;
};

TEST_F(RestoreJob, WhatAllWantIsReadOnceAmongThem) {
  const std::vector<Pieces> wanted(kWorld, saved_pieces(0, 1));
  const auto outcomes = run(wanted);
  std::uint64_t read = 0;
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.text, "whole");
    EXPECT_GT(outcome.read, 0U);
    EXPECT_EQ(outcome.read + outcome.received, unique_bytes(wanted));
    read += outcome.read;
  }
  EXPECT_EQ(read, unique_bytes(wanted));
}

TEST_F(RestoreJob, ShardsAndWhatIsReplicatedBesideThemAreReadOnce) {
  std::vector<Pieces> wanted;
  for (std::uint64_t rank = 0; rank < kWorld; ++rank) wanted.push_back(saved_pieces(rank, kWorld));
  expect_read_once(wanted);
}

TEST_F(RestoreJob, RanksThatWantDifferentThingsGetThem) {
  expect_read_once(
      {saved_pieces(0, 1), {}, {whole("scalar", Dtype::i64, {})}, {shard("rows", Dtype::f32, {1030, 1000}, 1, 1, 3)}});
}

TEST_F(RestoreJob, MoreWindowsThanBuffersPassThroughThem) {
  std::vector<Pieces> wanted(kWorld, sparse_rows());
  wanted[1] = {whole("sparse", Dtype::u8, {200, 40'000})};
  expect_read_once(wanted);
}

TEST_F(RestoreJob, ADamagedBlockIsTheSameErrorForAll) {
  for (const auto& entry : std::filesystem::directory_iterator(root() + "/step-1")) {
    if (entry.path().extension() == ".safetensors") test::flip(entry.path(), -100);
  }
  const auto outcomes = run(std::vector<Pieces>(kWorld, saved_pieces(0, 1)));
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.text, outcomes[0].text);
  EXPECT_NE(outcomes[0].text.find("checksum differs"), std::string::npos) << outcomes[0].text;
  EXPECT_EQ(outcomes[0].text.find("rank "), outcomes[0].text.rfind("rank ")) << outcomes[0].text;
}

TEST_F(RestoreJob, ATensorThatIsMissingForOneIsForAll) {
  std::vector<Pieces> wanted(kWorld, saved_pieces(0, 1));
  wanted[2].push_back(whole("nothing", Dtype::u8, {1}));
  for (const Outcome& outcome : run(wanted)) {
    EXPECT_NE(outcome.text.find("rank 2: "), std::string::npos) << outcome.text;
    EXPECT_NE(outcome.text.find("nothing"), std::string::npos) << outcome.text;
  }
}

TEST_F(RestoreJob, ARankThatIsKilledWhileItReadsIsNamed) {
  expect_same_end(2, At::check, "the process of rank 2 ended");
}

TEST_F(RestoreJob, AndSoIsTheFirstRankOfTheNode) {
  expect_same_end(0, At::check, "the process of rank 0 ended");
}

TEST_F(RestoreJob, ARankThatIsKilledBeforeTheyMeetEndsTheOthersAtTheDeadline) {
  met_ = 2s;
  done_ = 4s;
  expect_same_end(3, At::decided, "rank 3 of this node did not come");
}

TEST_F(RestoreJob, ARankThatIsKilledWhenItHasAllIsNamedToo) {
  expect_same_end(1, At::last, "the process of rank 1 ended");
}

TEST_F(RestoreJob, AndSoIsTheFirstRankWhenItHasAll) {
  expect_same_end(0, At::last, "the process of rank 0 ended");
}

TEST_F(RestoreJob, ARankThatHangsEndsTheOthersAtTheDeadlineAndLearnsOfIt) {
  done_ = 2s;
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < static_cast<int>(kWorld); ++rank)
    ranks.push_back(start(rank, saved_pieces(0, 1), rank == 1 ? At::check : At::nothing, SIGSTOP));
  ranks[1].wait_until_stopped();
  const std::string text = outcome_of(ranks[0]).text;
  EXPECT_NE(text.find("did not"), std::string::npos) << text;
  EXPECT_EQ(outcome_of(ranks[2]).text, text);
  EXPECT_EQ(outcome_of(ranks[3]).text, text);
  ranks[1].signal(SIGCONT);
}

}  // namespace
}  // namespace infercluster::checkpoint
