// SPDX-License-Identifier: Apache-2.0
// The planner and the commit record hold at 16,384 ranks what they hold at 8; and the simulation says what ranks do.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/log.h"
#include "bench/scale/simulation.h"
#include "bench/scale/training_state.h"
#include "checkpoint/checkpoint_test_helpers.h"
#include "exchange/exchange_test_helpers.h"
#include "testing/temp_dir.h"

namespace infercluster::scale {
namespace {

Figures simulated(const Model& model, const Parallelism& parallelism) {
  const auto figures =
      simulate({parallelism.world(), [&](std::uint64_t rank) { return pieces_of(model, parallelism, rank); }});
  EXPECT_TRUE(figures.ok()) << figures.error().to_string();
  return figures.ok() ? *figures : Figures{};
}

TEST(Scale, PlanningIsLinearInChunksUpTo16384Ranks) {
  const Model model;
  std::vector<Figures> all;
  for (const std::uint64_t world : {8U, 512U, 16384U}) {
    // A small world is over in milliseconds: the best of some, as whatever disturbs them only adds.
    Figures best = simulated(model, parallelism_of(world));
    for (int i = 0; i < 4 && world < 16384; ++i) {
      const Figures again = simulated(model, parallelism_of(world));
      if (again.seconds_per_chunk < best.seconds_per_chunk) best = again;
    }
    all.push_back(best);
  }
  for (const Figures& figures : all) {
    const std::string of = std::to_string(figures.world) + " ranks";
    EXPECT_EQ(figures.bytes, state_bytes(model)) << of;
    EXPECT_LT(figures.rank_seconds_max, 1.0) << of;
    EXPECT_LT(figures.coordinator_seconds, 1.0) << of;
    EXPECT_LT(figures.commit_bytes, 4U << 20) << of;
    EXPECT_LT(figures.rank_new.bytes_received, 256U << 10) << of;
    EXPECT_EQ(figures.rank_again.bytes_received, all[0].rank_again.bytes_received) << of;
    EXPECT_LT(figures.coordinator_bytes_peak, 64U << 20) << of;
    // A job that goes on as it was reads few of the indexes.
    EXPECT_LT(figures.own_indexes_max, 128U) << of;
  }
  const auto [least, most] = std::minmax_element(all.begin(), all.end(), [](const Figures& a, const Figures& b) {
    return a.seconds_per_chunk < b.seconds_per_chunk;
  });
  EXPECT_LT(most->seconds_per_chunk, 2 * least->seconds_per_chunk)
      << most->world << " ranks " << most->seconds_per_chunk << " s, " << least->world << " ranks "
      << least->seconds_per_chunk << " s";
}

// What one rank says over a store that all share.
class CountingStore final : public exchange::Store {
 public:
  explicit CountingStore(std::shared_ptr<exchange::Store> store) : store_(std::move(store)) {}

  Status set(const std::string& key, std::string_view value, exchange::Deadline deadline) override {
    sent(value.size());
    return store_->set(key, value, deadline);
  }
  Result<std::optional<std::string>> get(const std::string& key, exchange::Deadline until) override {
    auto value = store_->get(key, until);
    if (value.ok() && *value) {
      const std::lock_guard lock(mutex_);
      ++traffic_.messages;
      traffic_.bytes_received += (*value)->size();
    }
    return value;
  }
  Result<std::string> set_if_absent(const std::string& key, std::string_view value,
                                    exchange::Deadline deadline) override {
    sent(value.size());
    return store_->set_if_absent(key, value, deadline);
  }
  void erase(const std::string& key) override {
    sent(0);
    store_->erase(key);
  }

  // Since it was last asked.
  Traffic take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(traffic_, {});
  }

 private:
  void sent(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    ++traffic_.messages;
    traffic_.bytes_sent += bytes;
  }

  const std::shared_ptr<exchange::Store> store_;
  std::mutex mutex_;
  Traffic traffic_;  // guarded by mutex_
};

TEST(Scale, WhatIsCountedIsWhatRanksSend) {
  const Model model{.layers = 4, .hidden = 64, .key_value = 16, .feed_forward = 96, .vocabulary = 200};
  const Parallelism parallelism{2, 2, 2};
  const Figures figures = simulated(model, parallelism);
  const testing::TempDir root;
  const auto memory = std::make_shared<exchange::MemoryStore>();
  const auto world = static_cast<int>(parallelism.world());
  std::vector<Traffic> first(parallelism.world());
  std::vector<Traffic> second(parallelism.world());
  exchange::run_ranks(exchange::ranks_of(world), [&](int rank) {
    const auto store = std::make_shared<CountingStore>(memory);
    auto ranks = exchange::open_over_store(store, {rank, world}, exchange::deadline_in(std::chrono::seconds(60)));
    ASSERT_TRUE(ranks.ok()) << ranks.error().to_string();
    checkpoint::Options options;
    options.arena_bytes = 4 << 20;
    options.exchange = ranks->get();
    auto checkpointer = checkpoint::Checkpointer::open(root.path().string(), options);
    ASSERT_TRUE(checkpointer.ok());
    checkpoint::test::Memory state;
    for (const auto& piece : pieces_of(model, parallelism, static_cast<std::uint64_t>(rank))) state.add(piece, 1);
    const checkpoint::SaveOptions wait{.wait = checkpoint::Wait::until_durable};
    (void)store->take();
    for (auto* traffic : {&first, &second}) {
      const std::uint64_t step = traffic == &first ? 1 : 2;
      const auto saved = (*checkpointer)->save(step, state.state(), wait);
      ASSERT_TRUE(saved.ok()) << saved.error().to_string();
      (*traffic)[static_cast<std::size_t>(rank)] = store->take();
    }
  });
  const auto expect_equal = [](const Traffic& found, const Traffic& wanted, std::uint64_t more_erased) {
    EXPECT_EQ(found.messages, wanted.messages + more_erased);
    EXPECT_EQ(found.bytes_sent, wanted.bytes_sent);
    EXPECT_EQ(found.bytes_received, wanted.bytes_received);
  };
  expect_equal(first[0], figures.coordinator_new, 0);
  expect_equal(first[4], figures.rank_new, 0);            // that speaks for the second stage
  expect_equal(second[0], figures.coordinator_again, 3);  // what the first save left
  expect_equal(second[4], figures.rank_again, 0);
}

}  // namespace
}  // namespace infercluster::scale
