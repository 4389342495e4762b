// SPDX-License-Identifier: Apache-2.0
// The protocol, with ranks as threads: over a store in memory and over a directory.
#include "exchange/exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <latch>
#include <random>
#include <utility>

#include "exchange/exchange_test_helpers.h"
#include "testing/temp_dir.h"

namespace infercluster::exchange {
namespace {

using namespace std::chrono_literals;

constexpr auto kAmple = 60s;  // for what must not need it

class ExchangeTest : public ::testing::TestWithParam<const char*> {
 protected:
  Result<std::unique_ptr<Exchange>> open(int rank, int world, Clock::Duration within = kAmple) {
    if (std::string(GetParam()) == "directory")
      return open_in_directory(directory_.path().string(), "job", {rank, world}, deadline_in(within));
    return open_over_store(memory_, {rank, world}, deadline_in(within));
  }

  // Opens on all ranks, started in the order of `order`, and runs body(rank, exchange).
  void with_ranks(const std::vector<int>& order, const std::function<void(int, Exchange&)>& body) {
    run_ranks(order, [&](int rank) {
      auto exchange = open(rank, static_cast<int>(order.size()));
      ASSERT_TRUE(exchange.ok()) << exchange.error().to_string();
      body(rank, **exchange);
    });
  }

  std::vector<std::string> left() const {
    std::vector<std::string> names = memory_->keys();
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path()))
      names.push_back(entry.path().string());
    return names;
  }

  testing::TempDir directory_;
  std::shared_ptr<MemoryStore> memory_ = std::make_shared<MemoryStore>();
};

TEST_P(ExchangeTest, AllRanksGetAllBytesInAnyOrderOfArrival) {
  std::mt19937 random(20251201);
  for (int run = 0; run < 10; ++run) {
    std::vector<int> order = ranks_of(5);
    std::ranges::shuffle(order, random);
    with_ranks(order, [&](int rank, Exchange& exchange) {
      EXPECT_EQ(exchange.rank(), rank);
      EXPECT_EQ(exchange.world(), 5);
      for (int round = 0; round < 4; ++round) {
        const auto mine = [&](int r) { return std::to_string(run * 100 + round * 10 + r) + std::string(1, '\0'); };
        const auto all = exchange.gather("roots", mine(rank), deadline_in(kAmple));
        ASSERT_TRUE(all.ok()) << all.error().to_string();
        for (int r = 0; r < 5; ++r) EXPECT_EQ((*all)[static_cast<std::size_t>(r)], mine(r));
        ASSERT_TRUE(exchange.agree("plan", "hash" + std::to_string(round), deadline_in(kAmple)).ok());
      }
    });
  }
}

TEST_P(ExchangeTest, RankZeroDecidesUponWhatAllGave) {
  with_ranks({2, 0, 3, 1}, [&](int rank, Exchange& exchange) {
    for (int round = 0; round < 3; ++round) {
      int calls = 0;
      const auto join = [&](const std::vector<std::string>& given) -> Result<std::string> {
        ++calls;
        return given.at(0) + given.at(1) + given.at(2) + given.at(3);
      };
      const auto decided = exchange.decide("plan", std::to_string(rank + round), join, deadline_in(kAmple));
      ASSERT_TRUE(decided.ok()) << decided.error().to_string();
      EXPECT_EQ(*decided, std::vector<std::string>({"0123", "1234", "2345"})[static_cast<std::size_t>(round)]);
      EXPECT_EQ(calls, rank == 0 ? 1 : 0);
    }
  });
}

TEST_P(ExchangeTest, ADecisionThatFailsEndsItOnAllRanks) {
  with_ranks(ranks_of(3), [&](int rank, Exchange& exchange) {
    const auto fail = [](const std::vector<std::string>&) -> Result<std::string> {
      return Error(ErrorCode::invalid_argument, "a hole").with_tensor("w");
    };
    const auto decided = exchange.decide("plan", "", fail, deadline_in(kAmple));
    ASSERT_FALSE(decided.ok()) << rank;
    EXPECT_EQ(decided.error().message(), "rank 0: a hole");
    EXPECT_EQ(decided.error().tensor(), "w");
    EXPECT_EQ(exchange.gather("roots", "", deadline_in(kAmple)).error().message(), "rank 0: a hole");
  });
}

TEST_P(ExchangeTest, AnAbortComesBeforeADecisionOrAfterIt) {
  for (int run = 0; run < 10; ++run) {
    with_ranks(ranks_of(3), [&](int rank, Exchange& exchange) {
      if (rank == 2) (void)exchange.abort(Error(ErrorCode::io, "broken"), 0, deadline_in(kAmple));
      const auto decide = [](const std::vector<std::string>&) -> Result<std::string> { return std::string("x"); };
      EXPECT_EQ(exchange.decide("plan", "", decide, deadline_in(kAmple)).error().message(), "rank 2: broken");
    });
  }
}

TEST_P(ExchangeTest, ADifferenceIsTheSameErrorOnAllRanks) {
  with_ranks(ranks_of(4), [&](int rank, Exchange& exchange) {
    const Status status = exchange.agree("plan", rank == 2 ? "b" : "a", deadline_in(kAmple));
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().message(), "rank 2 differs from rank 0 in \"plan\": 62, not 61");
    EXPECT_EQ(exchange.gather("roots", "", deadline_in(kAmple)).error().message(), status.error().message());
    EXPECT_EQ(exchange.cause()->rank, 2);
  });
}

TEST_P(ExchangeTest, ALostStepIsTheSameErrorOnAllRanks) {
  with_ranks(ranks_of(3), [&](int rank, Exchange& exchange) {
    const auto all = exchange.gather(rank == 1 ? "roots" : "plan", "", deadline_in(kAmple));
    ASSERT_FALSE(all.ok());
    EXPECT_EQ(all.error().code(), ErrorCode::internal);
    EXPECT_EQ(all.error().message(), "rank 1 came to gather \"roots\" where rank 0 came to gather \"plan\"");
  });
}

TEST_P(ExchangeTest, AnAbortEndsAllThatWaitWithItsCause) {
  const auto start = steady_clock().now();
  with_ranks(ranks_of(4), [&](int rank, Exchange& exchange) {
    if (rank == 3) {
      const Error error = Error::from_errno(ENOSPC, "cannot write").with_path("/ckpt/seg").with_offset(4096);
      (void)exchange.abort(error, 12345, deadline_in(kAmple));
    }
    const auto all = exchange.gather("roots", "", deadline_in(kAmple));
    ASSERT_FALSE(all.ok());
    EXPECT_EQ(all.error().system_errno(), ENOSPC);
    EXPECT_EQ(all.error().path(), "/ckpt/seg");
    EXPECT_EQ(all.error().offset(), 4096U);
    EXPECT_EQ(all.error().message(), "rank 3: cannot write: No space left on device");
    EXPECT_EQ(exchange.cause()->rank, 3);
    EXPECT_EQ(exchange.cause()->bytes, 12345U);
    EXPECT_EQ(exchange.agree("plan", "", deadline_in(kAmple)).error().message(), all.error().message());
    EXPECT_EQ(exchange.check().error().message(), all.error().message());
  });
  EXPECT_LT(steady_clock().now() - start, kAmple / 4) << "nobody may wait for the deadline";
}

TEST_P(ExchangeTest, OfManyAbortsAllRanksGetTheSame) {
  for (int run = 0; run < 10; ++run) {
    std::vector<std::string> messages(4);
    with_ranks(ranks_of(4), [&](int rank, Exchange& exchange) {
      if (rank != 1) (void)exchange.abort(Error(ErrorCode::io, "broken"), 0, deadline_in(kAmple));
      messages[static_cast<std::size_t>(rank)] = exchange.gather("roots", "", deadline_in(kAmple)).error().message();
    });
    EXPECT_TRUE(messages[0].ends_with("broken")) << messages[0];
    EXPECT_EQ(std::ranges::count(messages, messages[0]), 4) << run;
  }
}

TEST_P(ExchangeTest, CheckSeesAnAbortWithoutACall) {
  std::latch aborted(1);
  with_ranks(ranks_of(2), [&](int rank, Exchange& exchange) {
    EXPECT_TRUE(rank == 1 || exchange.check().ok());
    if (rank == 0) {
      (void)exchange.abort(Error(ErrorCode::io, "broken"), 0, deadline_in(kAmple));
      aborted.count_down();
    }
    aborted.wait();
    EXPECT_EQ(exchange.check().error().message(), "rank 0: broken");
  });
}

TEST_P(ExchangeTest, AnAbortByAnotherThreadEndsTheWait) {
  with_ranks(ranks_of(2), [&](int rank, Exchange& exchange) {
    std::thread other;
    if (rank == 1)
      other = std::thread([&] { (void)exchange.abort(Error(ErrorCode::cancelled, "enough"), 0, deadline_in(kAmple)); });
    // The abort may come before this round is over, or only after it.
    const auto all = exchange.gather("roots", "", deadline_in(kAmple));
    if (other.joinable()) other.join();
    const auto more = exchange.gather("more", "", deadline_in(kAmple));
    ASSERT_FALSE(more.ok());
    EXPECT_EQ(more.error().message(), "rank 1: enough");
    EXPECT_TRUE(all.ok() || all.error().message() == "rank 1: enough");
  });
}

TEST_P(ExchangeTest, WhatAWaitingRankSeesEndsTheWaitOfAll) {
  for (const int watcher : {0, 2}) {
    std::latch others_are_done(2);
    with_ranks({0, 1, 2}, [&](int rank, Exchange& exchange) {
      if (rank == 1) others_are_done.wait();
      const auto watch = [&]() -> Status {
        return rank == watcher ? Error(ErrorCode::io, "the process of rank 1 ended") : Status();
      };
      const Status status = exchange.agree_watched("restored", "", watch, deadline_in(kAmple));
      if (rank != 1) others_are_done.count_down();
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().message(), "rank " + std::to_string(watcher) + ": the process of rank 1 ended");
    });
  }
}

TEST_P(ExchangeTest, WhatARankSeesAfterTheOthersHaveTheirVerdictChangesNothing) {
  std::latch waits(1);
  std::latch done(2);
  with_ranks({0, 1, 2}, [&](int rank, Exchange& exchange) {
    if (rank == 1) waits.wait();
    bool looked = false;
    const auto watch = [&]() -> Status {
      if (rank != 2 || std::exchange(looked, true)) return {};
      waits.count_down();
      done.wait();
      return Error(ErrorCode::io, "the others left");
    };
    const Status status = exchange.agree_watched("restored", "", watch, deadline_in(kAmple));
    EXPECT_TRUE(status.ok()) << status.error().to_string();
    if (rank != 2) done.count_down();
  });
}

TEST_P(ExchangeTest, AMissingRankIsNamedOnAllWithinTheDeadline) {
  constexpr auto kShort = 800ms;
  std::latch others_are_done(3);
  with_ranks(ranks_of(4), [&](int rank, Exchange& exchange) {
    if (rank == 2) others_are_done.wait();
    const auto start = steady_clock().now();
    const auto all = exchange.gather("roots", "", deadline_in(kShort));
    EXPECT_LT(steady_clock().now() - start, kShort + 1s);
    if (rank != 2) others_are_done.count_down();
    ASSERT_FALSE(all.ok());
    // Also on the one that came late: it learns what the others were told.
    EXPECT_EQ(all.error().code(), ErrorCode::timed_out);
    EXPECT_EQ(all.error().message(), "rank 2 did not come to \"roots\" before the deadline");
    EXPECT_EQ(exchange.cause()->rank, 2);
  });
}

TEST_P(ExchangeTest, AMissingRankZeroIsNamedToo) {
  constexpr auto kShort = 500ms;
  std::latch others_are_done(2);
  with_ranks(ranks_of(3), [&](int rank, Exchange& exchange) {
    if (rank == 0) others_are_done.wait();
    const auto all = exchange.gather("roots", "", deadline_in(kShort));
    if (rank != 0) others_are_done.count_down();
    ASSERT_FALSE(all.ok());
    EXPECT_EQ(all.error().code(), ErrorCode::timed_out);
    EXPECT_TRUE(all.error().message().starts_with("rank")) << all.error().message();
    EXPECT_NE(all.error().message().find('0'), std::string::npos) << all.error().message();
  });
}

TEST_P(ExchangeTest, ARankThatDoesNotOpenIsNamedOnAll) {
  constexpr auto kShort = 800ms;
  run_ranks({0, 1, 3}, [&](int rank) {
    const auto start = steady_clock().now();
    const auto exchange = open(rank, 4, kShort);
    EXPECT_LT(steady_clock().now() - start, kShort + 1s);
    ASSERT_FALSE(exchange.ok());
    EXPECT_EQ(exchange.error().code(), ErrorCode::timed_out);
    EXPECT_EQ(exchange.error().message(), "rank 2 did not come to \"open\" before the deadline");
  });
}

TEST_P(ExchangeTest, WithoutRankZeroTheOthersSaySo) {
  const auto exchange = open(1, 2, 300ms);
  ASSERT_FALSE(exchange.ok());
  EXPECT_EQ(exchange.error().message(), "rank 0 did not come to \"open\" before the deadline");
}

TEST_P(ExchangeTest, BadArgumentsEndAllRanks) {
  with_ranks(ranks_of(2), [&](int rank, Exchange& exchange) {
    const std::string bytes(rank == 1 ? kBytesMax + 1 : 0, 'x');
    const auto all = exchange.gather("roots", bytes, deadline_in(kAmple));
    ASSERT_FALSE(all.ok());
    EXPECT_EQ(all.error().code(), ErrorCode::too_large);
    EXPECT_EQ(exchange.cause()->rank, 1);
  });
}

TEST_P(ExchangeTest, NestedOnesEndAloneAndLeaveNothing) {
  std::latch counted(3);
  with_ranks(ranks_of(3), [&](int rank, Exchange& exchange) {
    for (std::uint64_t number = 0; number < 20; ++number) {
      auto save = exchange.nested(number);
      ASSERT_TRUE(save.ok());
      if (number % 2 == 0 && rank == 1) (void)(*save)->abort(Error(ErrorCode::io, "broken"), 0, deadline_in(kAmple));
      const auto all = (*save)->gather("roots", std::to_string(number), deadline_in(kAmple));
      EXPECT_EQ(all.ok(), number % 2 == 1) << number;
    }
    EXPECT_FALSE(exchange.nested(19).ok());
    ASSERT_TRUE(exchange.agree("end", "", deadline_in(kAmple)).ok());
    counted.arrive_and_wait();
    // Verdicts of the last rounds, hellos and the roster; what grew with the saves is gone.
    if (rank == 0) {
      EXPECT_LT(left().size(), 24U) << ::testing::PrintToString(left());
    }
    ASSERT_TRUE(exchange.agree("bye", "", deadline_in(kAmple)).ok());
  });
  if (std::string(GetParam()) == "directory") {
    EXPECT_EQ(left(), std::vector<std::string>());
  }
}

TEST_P(ExchangeTest, ADifferentWorldIsNamed) {
  run_ranks({0, 1, 2}, [&](int rank) {
    const auto exchange = open(rank, rank == 2 ? 4 : 3, 800ms);
    ASSERT_FALSE(exchange.ok());
    if (rank == 2) {
      EXPECT_EQ(exchange.error().code(), ErrorCode::invalid_argument);
    }
    EXPECT_EQ(exchange.error().message(), "rank 2 is one of 4, rank 0 of 3");
  });
}

TEST(Open, SomeRanksOfAJobAreCalledAsTheJobCallsThem) {
  const auto store = std::make_shared<MemoryStore>();
  run_ranks({1, 0}, [&](int rank) {
    auto some = open_over_store(store, {rank, 2, {5, 7}, 9}, deadline_in(kAmple));
    ASSERT_TRUE(some.ok()) << some.error().to_string();
    EXPECT_EQ((*some)->called(1), 7);
    EXPECT_EQ((*some)->job_world(), 9);
    auto first = (*some)->nested(0);
    EXPECT_EQ((*first)->agree("plan", std::to_string(rank), deadline_in(kAmple)).error().message(),
              "rank 7 differs from rank 5 in \"plan\": 31, not 30");
    auto second = (*some)->nested(1);
    if (rank == 1) (void)(*second)->abort(Error(ErrorCode::io, "broken"), 0, deadline_in(kAmple));
    const auto ended = (*second)->gather("roots", "", deadline_in(kAmple));
    ASSERT_FALSE(ended.ok());
    EXPECT_EQ(ended.error().message(), "rank 7: broken");
    EXPECT_EQ((*second)->cause()->rank, 7);
    auto third = (*some)->nested(2);
    const auto decide = [](const auto&) { return Result<std::string>(Error(ErrorCode::corrupt, "odd")); };
    EXPECT_EQ((*third)->decide("x", "", decide, deadline_in(kAmple)).error().message(), "rank 5: odd");
    auto fourth = (*some)->nested(3);
    if (rank == 0) {
      EXPECT_EQ((*fourth)->gather("late", "", deadline_in(300ms)).error().message(),
                "rank 7 did not come to \"late\" before the deadline");
    }
    EXPECT_TRUE((*some)->agree("end", "", deadline_in(kAmple)).ok());
  });
}

TEST(Open, OfSomeRanksOfAJobTheMissingAreNamed) {
  const auto store = std::make_shared<MemoryStore>();
  EXPECT_EQ(open_over_store(store, {0, 2, {5, 7}, 9}, deadline_in(200ms)).error().message(),
            "rank 7 did not come to \"open\" before the deadline");
}

TEST(Open, RefusesRanksOutOfRange) {
  const auto store = std::make_shared<MemoryStore>();
  for (const Member& member : {Member{-1, 2}, Member{2, 2}, Member{0, 0}, Member{0, kRanksMax + 1},
                               Member{0, 2, {4}, 8}, Member{0, 2, {4, 8}, 8}, Member{0, 2, {-1, 4}, 8}})
    EXPECT_EQ(open_over_store(store, member, deadline_in(1s)).error().code(), ErrorCode::invalid_argument);
  EXPECT_TRUE(open_over_store(store, {0, 1}, deadline_in(1s)).ok());
}

INSTANTIATE_TEST_SUITE_P(Over, ExchangeTest, ::testing::Values("memory", "directory"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace infercluster::exchange
