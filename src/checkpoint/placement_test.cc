// SPDX-License-Identifier: Apache-2.0
// Pieces with placements: planned as their boxes would be.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "checkpoint/checkpoint_test_helpers.h"
#include "checkpoint/plan_test_helpers.h"

namespace infercluster::checkpoint {
namespace {

using test::Dtype;
using test::plan_all;
using test::Shape;
using test::shard;
using test::WholePlan;
using MeshPointer = std::shared_ptr<const Mesh>;

MeshPointer line(std::uint64_t ranks, std::uint64_t first = 0) {
  return std::make_shared<const Mesh>(*Mesh::regular({ranks}, first, {1}));
}

Piece placed(const std::string& name, const Shape& shape, const MeshPointer& mesh, std::vector<Cut> cuts,
             std::uint64_t rank) {
  Piece piece{name, Dtype::f32, shape, {}, Sharding{mesh, std::move(cuts)}};
  piece.box = shard_box(*piece.sharding, shape, mesh->position_of(rank).value());
  return piece;
}

std::string refusal(const std::vector<Pieces>& ranks) {
  const auto plan = plan_all(ranks);
  return plan.ok() ? "" : plan.error().to_string();
}

void expect_in(const std::string& part, const std::string& text) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

// Each element of each tensor is written once.
void expect_each_once(const std::vector<Pieces>& ranks, const WholePlan& plan) {
  std::map<std::string, std::uint64_t> wanted;
  std::map<std::string, std::uint64_t> found;
  std::set<std::string> written;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const Piece& piece : ranks[rank]) {
      Piece all = piece;
      all.sharding.reset();
      all.box = manifest::whole_box(piece.shape);
      wanted[piece.tensor] = *check_piece(all);
    }
    for (const std::size_t i : plan.writes[rank]) {
      const Piece& piece = ranks[rank][i];
      EXPECT_TRUE(written.insert(piece.tensor + to_string(piece.box)).second) << piece.tensor << to_string(piece.box);
      found[piece.tensor] += *check_piece(piece);
    }
  }
  EXPECT_EQ(found, wanted);  // boxes of one placement do not overlap
}

std::vector<Pieces> without_placements(std::vector<Pieces> ranks) {
  for (Pieces& pieces : ranks) {
    for (Piece& piece : pieces) piece.sharding.reset();
  }
  return ranks;
}

// Case P05: dimension 0 of 10 over 8 ranks, 4096 over 30, dimension 1 over 4.
TEST(Sharding, CutsAsTorchDoes) {
  for (const std::uint64_t world : {1U, 3U, 4U, 8U, 30U}) {
    const auto mesh = line(world);
    for (const Shape& shape : {Shape{10, 4}, Shape{4096}, Shape{8, 10, 3}, Shape{1}, Shape{0, 3}}) {
      for (std::uint64_t dimension = 0; dimension < shape.size(); ++dimension) {
        for (std::uint64_t rank = 0; rank < world; ++rank) {
          EXPECT_EQ(placed("w", shape, mesh, {{0, dimension}}, rank).box,
                    shard("w", Dtype::f32, shape, dimension, rank, world).box);
        }
      }
    }
  }
  // 10 rows over 2, and each part over 4; then the other way round.
  const auto mesh = std::make_shared<const Mesh>(*Mesh::regular({2, 4}, 0, {4, 1}));
  const auto box = [&](std::vector<Cut> cuts, std::uint64_t position) {
    return to_string(shard_box({mesh, std::move(cuts)}, {10}, position));
  };
  EXPECT_EQ(box({{0, 0}, {1, 0}}, 2), "[4:5]");
  EXPECT_EQ(box({{0, 0}, {1, 0}}, 3), "[5:5]");
  EXPECT_EQ(box({{0, 0}, {1, 0}}, 4), "[5:7]");
  EXPECT_EQ(box({{1, 0}, {0, 0}}, 2), "[6:8]");
  EXPECT_EQ(box({{1, 0}, {0, 0}}, 3), "[9:10]");
  EXPECT_EQ(box({{1, 0}, {0, 0}}, 4), "[2:3]");
}

TEST(Sharding, WhatDoesNotFitIsRefused) {
  const auto mesh = line(2);
  EXPECT_TRUE(check_sharding({mesh, {{0, 1}}}, {3, 3}).ok());
  EXPECT_FALSE(check_sharding({mesh, {{0, 2}}}, {3, 3}).ok());
  EXPECT_FALSE(check_sharding({mesh, {{1, 0}}}, {3, 3}).ok());
  EXPECT_FALSE(check_sharding({mesh, {{0, 0}, {0, 1}}}, {3, 3}).ok());
}

TEST(Placement, ManyRanksSayOneText) {
  std::vector<Pieces> ranks;
  for (std::uint64_t rank = 0; rank < 64; ++rank) {
    const auto stage = std::make_shared<const Mesh>(*Mesh::regular({8, 4}, rank / 32 * 32, {4, 1}));
    const std::string layer = "layer." + std::to_string(rank / 32);
    ranks.push_back({placed(layer + ".w", {100, 64}, stage, {{1, 1}, {0, 0}}, rank),
                     placed(layer + ".norm", {64}, stage, {{0, 0}}, rank)});
  }
  EXPECT_EQ(test::groups_of(ranks)->size(), 2U);
  const auto plan = plan_all(ranks);
  ASSERT_TRUE(plan.ok()) << plan.error().to_string();
  expect_each_once(ranks, *plan);
  EXPECT_EQ(test::groups_of(without_placements(ranks))->size(), 64U);
}

TEST(Placement, ReplicasTakeTurns) {
  const auto mesh = std::make_shared<const Mesh>(*Mesh::regular({4, 2}, 0, {2, 1}));
  std::vector<Pieces> ranks;
  for (std::uint64_t rank = 0; rank < 8; ++rank) {
    Pieces pieces;
    for (std::uint64_t i = 0; i < 40; ++i)
      pieces.push_back(placed("t" + std::to_string(i), {64 + i, 2}, mesh, {{1, 1}}, rank));
    ranks.push_back(std::move(pieces));
  }
  const auto plan = plan_all(ranks);
  ASSERT_TRUE(plan.ok());
  expect_each_once(ranks, *plan);
  const auto [least, most] = std::minmax_element(plan->bytes.begin(), plan->bytes.end());
  EXPECT_LE(*most - *least, 64U * 4);
}

TEST(Placement, PlainTensorsFillUpWhatPlacementsLeaveUneven) {
  std::vector<Pieces> ranks;
  for (std::uint64_t rank = 0; rank < 4; ++rank) {
    const auto stage = line(2, rank / 2 * 2);
    ranks.push_back({placed(rank < 2 ? "large" : "small", {rank < 2 ? 2000U : 1000U}, stage, {{0, 0}}, rank)});
    for (int i = 0; i < 20; ++i) ranks.back().push_back(test::whole("step." + std::to_string(i), Dtype::f32, {50}));
  }
  const auto plan = plan_all(ranks);
  ASSERT_TRUE(plan.ok()) << plan.error().to_string();
  expect_each_once(ranks, *plan);
  EXPECT_EQ(plan->bytes, (std::vector<std::uint64_t>{4000, 4000, 4000, 4000}));
}

TEST(Placement, ATensorOnSeveralMeshesIsWrittenOnceByTheOneWithLess) {
  // An embedding that the first and the last stage tie; the first has a layer as well.
  std::vector<Pieces> ranks;
  for (std::uint64_t rank = 0; rank < 6; ++rank) {
    const bool first = rank < 2;
    const auto stage = first ? line(2, 0) : line(4, 2);
    ranks.push_back({placed("embedding", {30, 4}, stage, {{0, 0}}, rank)});
    if (first) ranks.back().push_back(placed("layer", {100}, stage, {{0, 0}}, rank));
  }
  const auto plan = plan_all(ranks);
  ASSERT_TRUE(plan.ok()) << plan.error().to_string();
  EXPECT_EQ(plan->copies, 1U);
  expect_each_once(ranks, *plan);
  EXPECT_EQ(plan->writes[0], std::vector<std::size_t>{1});
  EXPECT_EQ(plan->writes[2], std::vector<std::size_t>{0});
  for (std::size_t rank = 2; rank < 6; ++rank)
    ranks[rank][0] = placed("embedding", {30, 5}, line(4, 2), {{0, 0}}, rank);
  const std::string text = refusal(ranks);
  expect_in("\"embedding\"", text);
  expect_in("rank 0 and rank 2 hold it with different dtypes or shapes", text);
}

TEST(Placement, AMeshThatLacksARankIsRefused) {
  const auto mesh = line(4);
  std::vector<Pieces> ranks;
  for (std::uint64_t rank = 0; rank < 4; ++rank) ranks.push_back({placed("w", {10, 3}, mesh, {{0, 0}}, rank)});
  EXPECT_EQ(refusal(ranks), "");
  std::vector<Pieces> lacking = ranks;
  lacking[2].clear();
  expect_in("1 of the 4 ranks in the mesh of its placement do not hold it that way: rank 2 with [6:9, 0:3]",
            refusal(lacking));
  lacking = {ranks[0], ranks[1], ranks[2]};
  expect_in("rank 3 with [9:10, 0:3]", refusal(lacking));
  lacking = ranks;
  lacking[1] = {placed("w", {10, 3}, mesh, {{0, 1}}, 1)};
  expect_in("rank 1 with [3:6, 0:3]", refusal(lacking));
}

TEST(Placement, ContradictionsAreRefusedByName) {
  const auto mesh = line(2);
  const Piece left = placed("w", {10}, mesh, {{0, 0}}, 0);
  const Piece right = placed("w", {10}, mesh, {{0, 0}}, 1);
  Piece moved = right;
  moved.box.offsets[0] = 4;
  expect_in("rank 1 holds the box [4:9], and by its placement it would be [5:10]", refusal({{left}, {moved}}));
  Piece bare = right;
  bare.sharding.reset();
  expect_in("rank 0 and rank 1 hold it with a placement and without one", refusal({{left}, {bare}}));
  expect_in("names it twice", refusal({{left, left}, {right, right}}));
  expect_in("rank 2 holds it, and is not in the mesh", refusal({{left}, {right}, {right}}));
  Piece odd = right;
  odd.sharding->cuts[0].tensor_dimension = 1;
  expect_in("cuts dimension 1 of 1", refusal({{left}, {odd}}));
}

TEST(Placement, ATensorWithoutElementsKeepsItsName) {
  std::vector<Pieces> ranks;
  for (std::uint64_t rank = 0; rank < 3; ++rank) ranks.push_back({placed("none", {0, 7}, line(3), {{0, 0}}, rank)});
  const auto plan = plan_all(ranks);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->writes[0].size() + plan->writes[1].size() + plan->writes[2].size(), 1U);
}

TEST(Placement, TheTextsSurviveDamageAsErrors) {
  const Pieces pieces{placed("w", {10, 3}, line(4), {{0, 1}}, 1), test::whole("s", Dtype::i64, {})};
  const std::string text = encode_pieces(pieces);
  const auto back = decode_pieces(text);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ((*back)[0].sharding, pieces[0].sharding);
  EXPECT_TRUE((*back)[0].box.lengths.empty());
  EXPECT_EQ((*back)[1], pieces[1]);
  EXPECT_EQ(encode_pieces(*back), text);
  for (std::size_t cut = 0; cut < text.size(); ++cut) EXPECT_FALSE(decode_pieces(text.substr(0, cut)).ok()) << cut;
  const std::vector<Group> groups{{"a", {}, {0}}, {"b", {}, {1}}};
  const std::string plan = encode_plan({"hash", {{1, 1, kElsewhere}, {kByPlacement}}, 0, ""}, groups);
  EXPECT_EQ(decode_plan(plan, "a", 3)->writers, (Writers{1, 1, kElsewhere}));
  EXPECT_EQ(decode_plan(plan, "b", 1)->writers, Writers{kByPlacement});
  EXPECT_FALSE(decode_plan(plan, "a", 2).ok());
  EXPECT_FALSE(decode_plan(plan, "a", 4).ok());
  EXPECT_FALSE(decode_plan(plan, "c", 1).ok());
  for (std::size_t cut = 0; cut < plan.size(); ++cut)
    EXPECT_FALSE(decode_plan(plan.substr(0, cut), "b", 1).ok()) << cut;
}

// Random jobs: stages of any mesh, over ranks in any order, tensors cut in any way. What the placements give is held
// against what their boxes give.
class RandomJob {
 public:
  explicit RandomJob(unsigned seed) : random_(seed) {
    const std::uint64_t stages = 1 + pick(3);
    std::uint64_t world = 0;
    for (std::uint64_t stage = 0; stage < stages; ++stage) {
      shapes_.push_back(mesh_shape());
      world += size_of(shapes_.back());
    }
    std::vector<std::uint64_t> ranks(world);
    for (std::uint64_t i = 0; i < world; ++i) ranks[i] = i;
    if (pick(2) == 0) std::shuffle(ranks.begin(), ranks.end(), random_);
    ranks_.resize(world);
    auto next = ranks.begin();
    for (std::uint64_t stage = 0; stage < stages; ++stage) {
      const auto size = static_cast<std::ptrdiff_t>(size_of(shapes_[stage]));
      add_stage(stage, {next, next + size});
      next += size;
    }
  }
  [[nodiscard]] const std::vector<Pieces>& ranks() const { return ranks_; }
  // Bytes of the largest box of each kind of placement, together: what balance by kinds may cost a rank.
  [[nodiscard]] std::uint64_t slack() const { return slack_; }

 private:
  std::uint64_t pick(std::uint64_t below) { return random_() % below; }
  static std::uint64_t size_of(const Shape& shape) {
    std::uint64_t size = 1;
    for (const std::uint64_t length : shape) size *= length;
    return size;
  }
  Shape mesh_shape() {
    Shape shape(1 + pick(3));
    for (std::uint64_t& length : shape) length = 1 + pick(4);
    return shape;
  }

  void add_stage(std::uint64_t stage, const std::vector<std::uint64_t>& ranks) {
    const auto mesh = std::make_shared<const Mesh>(*Mesh::of(shapes_[stage], ranks));
    std::map<std::set<std::uint64_t>, std::uint64_t> largest;
    for (std::uint64_t t = 0; t < 30; ++t) {
      Shape shape(1 + pick(3));
      for (std::uint64_t& length : shape) length = 1 + pick(20);
      std::vector<Cut> cuts;
      std::set<std::uint64_t> cut;
      for (std::uint64_t d = 0; d < mesh->shape().size(); ++d) {
        if (pick(2) == 0) continue;
        cuts.push_back({d, pick(shape.size())});
        cut.insert(d);
      }
      std::shuffle(cuts.begin(), cuts.end(), random_);
      // Some names are those of other stages: one shape, held twice.
      const bool tied = stage > 0 && t < 2;
      const std::string name = (tied ? "0." : std::to_string(stage) + ".") + std::to_string(t);
      if (tied) shape = ranks_of_first_[t];
      if (tied) std::erase_if(cuts, [&](const Cut& c) { return c.tensor_dimension >= shape.size(); });
      if (stage == 0) ranks_of_first_.push_back(shape);
      for (const std::uint64_t rank : ranks) ranks_[rank].push_back(placed(name, shape, mesh, cuts, rank));
      auto& most = largest[cut];
      most = std::max(most, size_of(shard_box({mesh, cuts}, shape, 0).lengths) * 4);
    }
    for (const auto& [cut, bytes] : largest) slack_ += bytes;
  }

  std::mt19937 random_;
  std::vector<Shape> shapes_;
  std::vector<Shape> ranks_of_first_;
  std::vector<Pieces> ranks_;
  std::uint64_t slack_ = 0;
};

TEST(Placement, IsPlannedAsItsBoxesWouldBe) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    const RandomJob job(seed);
    const auto plan = plan_all(job.ranks());
    ASSERT_TRUE(plan.ok()) << seed << ": " << plan.error().to_string();
    expect_each_once(job.ranks(), *plan);
    if (plan->copies > 0) continue;  // by boxes they would overlap
    const auto boxes = plan_all(without_placements(job.ranks()));
    ASSERT_TRUE(boxes.ok()) << seed << ": " << boxes.error().to_string();
    EXPECT_LE(*std::max_element(plan->bytes.begin(), plan->bytes.end()),
              *std::max_element(boxes->bytes.begin(), boxes->bytes.end()) + job.slack())
        << seed;
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

}  // namespace
}  // namespace infercluster::checkpoint
