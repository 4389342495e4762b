// SPDX-License-Identifier: Apache-2.0
// Pages that a server changes while they are saved.
#include "checkpoint/live_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "checkpoint/checkpointer.h"
#include "checkpoint/saved_test_helpers.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

using test::Dtype;
using test::whole;

constexpr std::size_t kPages = 24;
constexpr std::size_t kWords = 2'000;  // of a page

// Each word of a page is its generation, times the page's number from 1 on.
class LiveServer {
 public:
  LiveServer() : words_(kPages * kWords), generations_(kPages, 0) {
    for (std::size_t page = 0; page < kPages; ++page) change(page);
  }
  // As a decode step does: no lock.
  void change(std::size_t page) {
    std::uint64_t& generation = generations_[page];
    const std::uint64_t next = generation + 2;
    __atomic_store_n(&generation, next - 1, __ATOMIC_RELAXED);
    for (std::size_t i = 0; i < kWords; ++i)
      __atomic_store_n(&words_[page * kWords + i], next * (page + 1), __ATOMIC_RELEASE);
    __atomic_store_n(&generation, next, __ATOMIC_RELEASE);
  }
  [[nodiscard]] std::uint64_t& generation(std::size_t page) { return generations_[page]; }
  [[nodiscard]] State state() const {
    State state;
    for (std::size_t page = 0; page < kPages; ++page) {
      HostPiece piece{piece_of(page), reinterpret_cast<const std::byte*>(&words_[page * kWords])};
      piece.live_generation = &generations_[page];
      state.pieces.push_back(std::move(piece));
    }
    return state;
  }
  static Piece piece_of(std::size_t page) { return whole("kv/" + std::to_string(page), Dtype::u64, {kWords}); }

 private:
  std::vector<std::uint64_t> words_;
  std::vector<std::uint64_t> generations_;
};

// Each page holds the content of the one generation that the index says.
void check_consistent(const std::string& root, std::uint64_t step) {
  const auto checkpoint = test::open_saved(root, step);
  std::vector<std::uint64_t> words(kPages * kWords);
  std::vector<Target> targets;
  for (std::size_t page = 0; page < kPages; ++page)
    targets.push_back({LiveServer::piece_of(page), reinterpret_cast<std::byte*>(&words[page * kWords])});
  const auto report = checkpoint->restore(targets, {});
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  for (std::size_t page = 0; page < kPages; ++page) {
    const auto& part = checkpoint->tensors().at("kv/" + std::to_string(page)).parts.at(0);
    const auto generation = checkpoint->indexes()[part.index].chunks[part.chunk].generation;
    ASSERT_TRUE(generation);
    ASSERT_EQ(*generation % 2, 0U);
    const auto begin = words.begin() + static_cast<std::ptrdiff_t>(page * kWords);
    ASSERT_EQ(std::count(begin, begin + kWords, *generation * (page + 1)), static_cast<std::ptrdiff_t>(kWords))
        << "step " << step << ", page " << page;
  }
}

class LivePages : public ::testing::Test {
 protected:
  std::unique_ptr<Checkpointer> open(std::uint64_t arena_bytes = 0) {
    Options options;
    options.arena_bytes = arena_bytes;
    options.retention.keep = 0;
    return *Checkpointer::open(root_, options);
  }
  testing::TempDir temp_;
  std::string root_ = temp_.path().string();
};

TEST_F(LivePages, EachIsOfOneGenerationWhileTheyChange) {
  constexpr std::uint64_t kSteps = 12;
  LiveServer server;
  auto checkpointer = open();
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> changes{0};
  std::thread decoding([&] {
    for (std::size_t i = 0; !stop; ++i) {
      server.change(i * 7 % (kPages / 3));  // the other pages stay
      changes = i + 1;
    }
  });
  std::uint64_t referred = 0;
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    const std::uint64_t before = changes;
    while (changes == before) std::this_thread::yield();
    const auto saved = checkpointer->save(step, server.state(), {.wait = Wait::until_durable});
    EXPECT_TRUE(saved.ok()) << saved.error().to_string();
    if (saved.ok() && step > 1) referred += (*saved)->report().referred;
  }
  stop = true;
  decoding.join();
  for (std::uint64_t step = 1; step <= kSteps; ++step) check_consistent(root_, step);
  EXPECT_GE(referred, (kSteps - 1) * kPages * 2 / 3);
}

TEST_F(LivePages, OneThatStaysOddFailsByNameAndLeavesNothing) {
  LiveServer server;
  auto checkpointer = open();
  ++server.generation(3);
  const auto failed = checkpointer->save(1, server.state(), {.wait = Wait::until_durable});
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code(), ErrorCode::changed);
  EXPECT_NE(failed.error().to_string().find("kv/3"), std::string::npos) << failed.error().to_string();
  EXPECT_TRUE(checkpointer->steps()->empty());
  ++server.generation(3);
  server.change(3);
  ASSERT_TRUE(checkpointer->save(2, server.state(), {.wait = Wait::until_durable}).ok());
  check_consistent(root_, 2);
}

TEST_F(LivePages, AtRestTheyAreSavedInSeveralWavesToo) {
  LiveServer server;
  const auto saved = open(2 * 64 * 1024)->save(1, server.state(), {.wait = Wait::until_durable});
  ASSERT_TRUE(saved.ok()) << saved.error().to_string();
  EXPECT_GT((*saved)->report().waves, 2U);
  check_consistent(root_, 1);
}

TEST_F(LivePages, StridesAreRefusedByName) {
  LiveServer server;
  State state = server.state();
  state.pieces[5].strides = {16};
  const auto refused = open()->save(1, state, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(refused.error().tensor(), "kv/5");
}

TEST(LiveCopy, CopiesAnyOffsetsAndLengths) {
  std::vector<std::byte> from(64);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i + 1);
  const std::uint64_t generation = 4;
  for (std::size_t begin = 0; begin < 9; ++begin) {
    for (std::size_t bytes = 0; bytes < 40; ++bytes) {
      std::vector<std::byte> to(bytes + 1, std::byte{0xEE});
      const LiveRange range{from.data() + begin, to.data(), bytes};
      EXPECT_EQ(*copy_live(std::span(&range, 1), generation, std::chrono::seconds(1)), 4U);
      EXPECT_TRUE(std::equal(to.begin(), to.end() - 1, from.begin() + static_cast<std::ptrdiff_t>(begin)));
      EXPECT_EQ(to.back(), std::byte{0xEE});
    }
  }
}

}  // namespace
}  // namespace infercluster::checkpoint
