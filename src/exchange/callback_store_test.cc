// SPDX-License-Identifier: Apache-2.0
#include "exchange/callback_store.h"

#include <gtest/gtest.h>

#include <latch>
#include <stdexcept>

#include "exchange/exchange_test_helpers.h"

namespace infercluster::exchange {
namespace {

using namespace std::chrono_literals;

constexpr auto kAmple = 60s;

// As torch's stores: one call after the other, an exception where there is nothing, and perhaps no way to erase.
class TorchLike {
 public:
  StoreCallbacks callbacks() {
    return {.set = [this](const std::string& key, const std::string& value) { write(key, value); },
            .get = [this](const std::string& key, std::chrono::milliseconds wait) { return read(key, wait); },
            .set_if_absent =
                [this](const std::string& key, const std::string& value) {
                  const std::lock_guard lock(mutex_);
                  return values_.try_emplace(key, value).first->second;
                },
            .erase = [](const std::string&) { throw std::runtime_error("not supported"); }};
  }
  std::atomic<bool> broken{false};
  std::atomic<std::int64_t> longest_wait_ms{0};

 private:
  void write(const std::string& key, const std::string& value) {
    const std::lock_guard lock(mutex_);
    if (broken) throw std::runtime_error("connection reset by peer");
    values_[key] = value;
  }
  // Holds its lock while it waits, as TCPStore's client does.
  std::optional<std::string> read(const std::string& key, std::chrono::milliseconds wait) {
    const std::lock_guard lock(mutex_);
    if (wait.count() > longest_wait_ms) longest_wait_ms = wait.count();
    if (broken) throw std::runtime_error("connection reset by peer");
    const auto found = values_.find(key);
    return found == values_.end() ? std::optional<std::string>() : found->second;
  }
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
};

TEST(CallbackStore, RanksMeetOverIt) {
  TorchLike torch;
  const auto store = make_callback_store(torch.callbacks());
  run_ranks({2, 0, 1}, [&](int rank) {
    auto exchange = open_over_store(store, {rank, 3}, deadline_in(kAmple));
    ASSERT_TRUE(exchange.ok()) << exchange.error().to_string();
    for (std::uint64_t save = 0; save < 3; ++save) {
      auto nested = (*exchange)->nested(save);
      ASSERT_TRUE(nested.ok());
      const auto all = (*nested)->gather("roots", std::to_string(rank), deadline_in(kAmple));
      ASSERT_TRUE(all.ok()) << all.error().to_string();
      EXPECT_EQ(*all, (std::vector<std::string>{"0", "1", "2"}));
    }
  });
  EXPECT_LE(torch.longest_wait_ms, StoreCallbacks::kWaitMax.count());
}

TEST(CallbackStore, ASecondJobOverWhatTheFirstLeftSeesOnlyItsOwn) {
  TorchLike torch;
  const auto store = make_callback_store(torch.callbacks());
  for (const std::string& word : {std::string("old"), std::string("new")})
    run_ranks(ranks_of(3), [&](int rank) {
      auto exchange = open_over_store(store, {rank, 3}, deadline_in(kAmple));
      ASSERT_TRUE(exchange.ok()) << exchange.error().to_string();
      const auto all = (*exchange)->gather("roots", word, deadline_in(kAmple));
      ASSERT_TRUE(all.ok()) << all.error().to_string();
      EXPECT_EQ(*all, (std::vector<std::string>{word, word, word}));
    });
}

TEST(CallbackStore, AnExceptionIsTheErrorOfTheRank) {
  TorchLike torch;
  const auto store = make_callback_store(torch.callbacks());
  std::latch both_ready(2);
  run_ranks(ranks_of(2), [&](int rank) {
    auto exchange = open_over_store(store, {rank, 2}, deadline_in(kAmple));
    ASSERT_TRUE(exchange.ok());
    ASSERT_TRUE((*exchange)->agree("ready", "", deadline_in(kAmple)).ok());
    both_ready.arrive_and_wait();
    torch.broken = true;
    const auto start = steady_clock().now();
    const auto all = (*exchange)->gather("roots", "", deadline_in(kAmple));
    ASSERT_FALSE(all.ok());
    EXPECT_EQ(all.error().code(), ErrorCode::io);
    EXPECT_NE(all.error().message().find("the store failed: connection reset by peer"), std::string::npos);
    EXPECT_LT(steady_clock().now() - start, kAmple / 4);
  });
}

}  // namespace
}  // namespace infercluster::exchange
