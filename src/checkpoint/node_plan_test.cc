// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/node_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "base/units.h"

namespace infercluster::checkpoint {
namespace {

constexpr std::uint64_t kBlock = manifest::kBlockBytes;
constexpr std::uint64_t kWindow = 4 * kMiB;

// Checks what holds of every plan, by blocks; returns bytes read per rank.
std::vector<std::uint64_t> check(const std::vector<WantedBlocks>& wanted) {
  const NodePlan plan = plan_for_node(wanted, kWindow);
  using Block = std::pair<SegmentId, std::uint64_t>;
  std::map<Block, std::set<std::size_t>> wanting;
  for (std::size_t rank = 0; rank < wanted.size(); ++rank) {
    for (const auto& [segment, windows] : wanted[rank]) {
      for (const Window& window : windows) {
        for (std::uint64_t at = window.begin; at < window.end; at += kBlock) wanting[{segment, at}].insert(rank);
      }
    }
  }
  std::map<Block, int> reads;
  std::vector<std::uint64_t> bytes(wanted.size());
  const auto read = [&](const SegmentId& segment, const Window& window, std::size_t rank) {
    EXPECT_LE(window.end - window.begin, kWindow);
    bytes[rank] += window.end - window.begin;
    for (std::uint64_t at = window.begin; at < window.end; at += kBlock) ++reads[{segment, at}];
  };
  for (std::size_t rank = 0; rank < wanted.size(); ++rank) {
    for (const PlannedRead& alone : plan.alone[rank]) {
      read(alone.segment, alone.window, rank);
      for (std::uint64_t at = alone.window.begin; at < alone.window.end; at += kBlock)
        EXPECT_EQ((wanting[{alone.segment, at}]), std::set<std::size_t>{rank});
    }
  }
  for (const SharedRead& shared : plan.shared) {
    read(shared.segment, shared.window, shared.owner);
    std::set<std::size_t> of_window;
    for (std::uint64_t at = shared.window.begin; at < shared.window.end; at += kBlock)
      of_window.insert(wanting[{shared.segment, at}].begin(), wanting[{shared.segment, at}].end());
    EXPECT_EQ(std::set<std::size_t>(shared.wanting.begin(), shared.wanting.end()), of_window);
    EXPECT_TRUE(of_window.contains(shared.owner));
  }
  for (const auto& [block, ranks] : wanting) EXPECT_EQ(reads[block], 1) << block.second;
  EXPECT_EQ(reads.size(), wanting.size());
  return bytes;
}

TEST(NodePlan, WhatAllWantIsReadOnceInEqualShares) {
  const auto bytes = check(std::vector<WantedBlocks>(4, {{{0, 0}, {{0, 64 * kMiB}}}, {{1, 0}, {{0, 64 * kMiB + 7}}}}));
  for (const std::uint64_t of_rank : bytes) EXPECT_NEAR(static_cast<double>(of_rank), 32.0 * kMiB, 4.0 * kMiB);
}

TEST(NodePlan, ARankThatHasMuchOfItsOwnReadsLessOfTheRest) {
  const std::vector<WantedBlocks> wanted{{{{0, 0}, {{0, 32 * kMiB}}}, {{1, 0}, {{0, 16 * kMiB}}}},
                                         {{{1, 0}, {{0, 16 * kMiB}}}}};
  EXPECT_EQ(check(wanted), (std::vector<std::uint64_t>{32 * kMiB, 16 * kMiB}));
}

TEST(NodePlan, BlocksThatTwoShardsShareAreReadWithTheirNeighbours) {
  const std::vector<WantedBlocks> wanted{{{{0, 0}, {{0, 10 * kMiB + kBlock}}}},
                                         {{{0, 0}, {{10 * kMiB, 20 * kMiB + kBlock}}}},
                                         {{{0, 0}, {{20 * kMiB, 30 * kMiB}}}}};
  check(wanted);
  const NodePlan plan = plan_for_node(wanted, kWindow);
  ASSERT_EQ(plan.shared.size(), 2U);
  EXPECT_GT(plan.shared[0].window.end - plan.shared[0].window.begin, kMiB);
}

TEST(NodePlan, AnyWantsAreReadOnce) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    std::vector<WantedBlocks> wanted(1 + random() % 6);
    for (WantedBlocks& of_rank : wanted) {
      for (std::uint64_t segment = 0; segment < 3; ++segment) {
        std::vector<Window> windows;
        std::uint64_t at = random() % 20;
        for (std::uint64_t i = random() % 8; i > 0; --i) {
          const std::uint64_t end = at + 1 + random() % (random() % 4 == 0 ? 200 : 5);
          windows.push_back({at * kBlock, end * kBlock});
          at = end + 1 + random() % 10;
        }
        if (!windows.empty()) of_rank[{segment / 2, segment % 2}] = windows;
      }
      const auto decoded = decode_wanted(encode_wanted(of_rank));
      ASSERT_TRUE(decoded.ok());
      EXPECT_EQ(encode_wanted(*decoded), encode_wanted(of_rank));
    }
    check(wanted);
  }
}

TEST(NodePlan, DamagedWantsAreRefused) {
  const std::string bytes = encode_wanted({{{0, 0}, {{0, kBlock}, {4 * kBlock, 5 * kBlock}}}});
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) EXPECT_FALSE(decode_wanted(bytes.substr(0, cut)).ok()) << cut;
  EXPECT_FALSE(decode_wanted(bytes + "x").ok());
  EXPECT_FALSE(decode_wanted(encode_wanted({{{0, 0}, {{4 * kBlock, 5 * kBlock}, {0, kBlock}}}})).ok());
}

}  // namespace
}  // namespace infercluster::checkpoint
