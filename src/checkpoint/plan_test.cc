// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <set>

#include "checkpoint/checkpoint_test_helpers.h"
#include "checkpoint/plan_test_helpers.h"

namespace infercluster::checkpoint {
namespace {

using test::Dtype;
using test::plan_all;
using test::Shape;
using test::shard;
using test::whole;

std::string refusal(const std::vector<Pieces>& ranks) {
  const auto plan = plan_all(ranks);
  return plan.ok() ? "" : plan.error().to_string();
}

TEST(Plan, EveryBoxIsWrittenOnceByARankThatHoldsIt) {
  std::vector<Pieces> ranks;
  for (std::uint64_t rank = 0; rank < 4; ++rank) {
    ranks.push_back({whole("norm", Dtype::f32, {1000}), shard("w", Dtype::bf16, {10, 6}, 0, rank, 4),
                     shard("v", Dtype::bf16, {6, 10}, 1, rank / 2, 2), whole("scale", Dtype::f32, {})});
  }
  const auto plan = plan_all(ranks);
  ASSERT_TRUE(plan.ok()) << plan.error().to_string();
  std::set<std::string> written;
  std::uint64_t bytes = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const std::size_t i : plan->writes[rank]) {
      const Piece& piece = ranks[rank][i];
      EXPECT_TRUE(written.insert(piece.tensor + to_string(piece.box)).second) << piece.tensor << to_string(piece.box);
      bytes += *check_piece(piece);
    }
  }
  EXPECT_EQ(bytes, 4000U + 120 + 120 + 4);
  EXPECT_EQ(plan->hash.size(), 32U);
}

TEST(Plan, ReplicatedTensorsGoToTheLeastLoaded) {
  Pieces alike;
  for (int i = 0; i < 100; ++i) alike.push_back(whole("t" + std::to_string(i), Dtype::u8, {1000}));
  std::vector<Pieces> ranks(4, alike);
  ranks[2].push_back(whole("own", Dtype::u8, {10'000}));
  const auto plan = plan_all(ranks);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->bytes, (std::vector<std::uint64_t>{28'000, 28'000, 27'000, 27'000}));
}

TEST(Plan, IsTheSameOnEveryRankAndTellsChanges) {
  std::vector<Pieces> ranks(3, {whole("a", Dtype::f32, {5}), whole("b", Dtype::f32, {5})});
  const auto first = plan_all(ranks);
  const auto second = plan_all(ranks);
  EXPECT_EQ(first->hash, second->hash);
  EXPECT_EQ(first->writes, second->writes);
  ranks[1][0].dtype = ranks[0][0].dtype = ranks[2][0].dtype = Dtype::i32;
  EXPECT_NE(plan_all(ranks)->hash, first->hash);
}

TEST(Plan, HolesOverlapsAndContradictionsAreRefusedByName) {
  const Piece left{"w", Dtype::f32, {4, 4}, {{0, 0}, {4, 2}}};
  const Piece right{"w", Dtype::f32, {4, 4}, {{0, 2}, {4, 2}}};
  const Piece wide{"w", Dtype::f32, {4, 4}, {{0, 1}, {4, 3}}};
  const Piece outside{"w", Dtype::f32, {4, 4}, {{0, 3}, {4, 2}}};
  const Piece far{"w", Dtype::f32, {4, 4}, {{0, UINT64_MAX}, {4, 2}}};
  EXPECT_EQ(refusal({{left}, {right}}), "");
  EXPECT_NE(refusal({{left}, {}}).find("no rank holds 8 of its 16 elements (rank 0 holds [0:4, 0:2])"),
            std::string::npos);
  const std::string overlap = refusal({{left}, {wide}});
  EXPECT_NE(overlap.find("\"w\""), std::string::npos) << overlap;
  EXPECT_NE(overlap.find("[0:4, 0:2] and [0:4, 1:4] overlap (rank 0 holds [0:4, 0:2], rank 1 holds [0:4, 1:4])"),
            std::string::npos)
      << overlap;
  EXPECT_NE(refusal({{left}, {outside}}).find("reaches out"), std::string::npos);
  EXPECT_NE(refusal({{left}, {far}}).find("reaches out"), std::string::npos);
  EXPECT_NE(refusal({{left, left}, {right}}).find("names it twice"), std::string::npos);
  Piece other = right;
  other.dtype = Dtype::i32;
  EXPECT_NE(refusal({{left}, {other}}).find("different dtypes or shapes"), std::string::npos);
  EXPECT_NE(refusal({{left}, {{"w", Dtype::f32, {4, 4}, {{0}, {4}}}}}).find("dimensions"), std::string::npos);
}

TEST(Plan, BoxesThatInterlockAreJudgedToo) {
  // A pinwheel around the middle: no straight cut parts it.
  const Shape shape{3, 3};
  const Pieces wheel{{"w", Dtype::u8, shape, {{0, 0}, {1, 2}}},
                     {"w", Dtype::u8, shape, {{0, 2}, {2, 1}}},
                     {"w", Dtype::u8, shape, {{2, 1}, {1, 2}}},
                     {"w", Dtype::u8, shape, {{1, 0}, {2, 1}}},
                     {"w", Dtype::u8, shape, {{1, 1}, {1, 1}}}};
  EXPECT_EQ(plan_all(std::vector<Pieces>{{wheel[0]}, {wheel[1]}, {wheel[2]}, {wheel[3]}, {wheel[4]}}).ok(), true);
  Piece larger = wheel[4];
  larger.box.lengths = {1, 2};
  EXPECT_NE(refusal({{wheel[0]}, {wheel[1]}, {wheel[2]}, {wheel[3]}, {larger}}).find("overlap"), std::string::npos);
}

// Case P05: a rank without rows begins where another's real shard does, and neither hides the other.
TEST(Plan, BoxesWithoutElementsHideNothing) {
  std::vector<Pieces> ranks;
  for (std::uint64_t rank = 0; rank < 8; ++rank) ranks.push_back({shard("w", Dtype::f32, {10, 4}, 0, rank, 8)});
  Piece empty = ranks[0][0];
  empty.box.lengths[0] = 0;
  ranks.insert(ranks.begin(), Pieces{empty});
  const auto plan = plan_all(ranks);
  ASSERT_TRUE(plan.ok()) << plan.error().to_string();
  std::uint64_t bytes = 0;
  for (const std::uint64_t of_rank : plan->bytes) bytes += of_rank;
  EXPECT_EQ(bytes, 160U);
  EXPECT_TRUE(plan->writes[0].empty());
}

TEST(Plan, ATensorWithoutElementsKeepsItsName) {
  const auto plan = plan_all(std::vector<Pieces>(3, {whole("none", Dtype::f32, {0, 7})}));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->writes[0].size() + plan->writes[1].size() + plan->writes[2].size(), 1U);
}

TEST(Plan, PiecesSurviveTheWayBetweenRanks) {
  const Pieces pieces{shard("größe", Dtype::f8_e4m3, {10, 4}, 0, 1, 3), whole("s", Dtype::i64, {})};
  const std::string bytes = encode_pieces(pieces);
  EXPECT_EQ(*decode_pieces(bytes), pieces);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) EXPECT_FALSE(decode_pieces(bytes.substr(0, cut)).ok()) << cut;
  EXPECT_FALSE(decode_pieces(bytes + "x").ok());
  EXPECT_FALSE(decode_pieces(std::string(8, '\xFF')).ok());
}

// One tensor cut over so many ranks, along two dimensions, and one that all of them hold.
std::vector<Pieces> mesh(std::uint64_t ranks) {
  std::vector<Pieces> all;
  const std::uint64_t columns = 8;
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    Pieces pieces;
    for (int i = 0; i < 4; ++i) {
      const std::string name = "layer." + std::to_string(i);
      pieces.push_back(
          {name, Dtype::bf16, {ranks, 8 * columns}, {{rank / columns * columns, rank % columns * 8}, {columns, 8}}});
      pieces.push_back(whole(name + ".norm", Dtype::f32, {128}));
    }
    all.push_back(std::move(pieces));
  }
  return all;
}

// Of this thread's processor time, so that what else runs on the machine does not count.
double seconds_of(const std::vector<Group>& groups, std::uint64_t world) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double begin = now();
  EXPECT_TRUE(plan_writes(groups, world).ok());
  return now() - begin;
}

// Work that grew with the square of the chunks would take 64 * 64 times as long.
TEST(Plan, CostGrowsWithTheChunksAndNoFaster) {
  const auto few = test::groups_of(mesh(64));
  const auto many = test::groups_of(mesh(4096));
  double small = 1e9;
  double large = 1e9;
  for (int i = 0; i < 7; ++i) {
    small = std::min(small, seconds_of(*few, 64));
    large = std::min(large, seconds_of(*many, 4096));
  }
  EXPECT_LT(large, small * 64 * 8) << "64 ranks " << small << " s, 4096 ranks " << large << " s";
}

}  // namespace
}  // namespace infercluster::checkpoint
