// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/sources.h"

#include <gtest/gtest.h>

#include <memory>

#include "checkpoint/saved_test_helpers.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

using test::Dtype;
using test::Memory;
using test::whole;

constexpr std::uint64_t kWorld = 8;

std::optional<std::vector<std::uint64_t>> read_back(const std::string& text, std::uint64_t world = 100) {
  manifest::Index index;
  index.metadata = {{"note", "x"}, {std::string(kSourcesKey), text}};
  return sources_in(index, world);
}

TEST(Sources, ComeBackAsTheyWere) {
  for (const std::vector<std::uint64_t>& ranks : {std::vector<std::uint64_t>{0}, {3, 4}, {0, 1, 2, 5, 7, 8, 99}}) {
    EXPECT_EQ(read_back(*encode_sources(ranks)), ranks);
  }
  EXPECT_EQ(*encode_sources({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
}

TEST(Sources, AnythingElseSaysNothing) {
  EXPECT_FALSE(sources_in({}, 100).has_value());
  for (const char* text : {"", "x", "1,", ",1", "-1", "1-", "2-1", "1-1", "1,1", "3,2", "1 ", " 1", "100", "0-100",
                           "99999999999999999999", "1-2-3", "0x1", "+1"}) {
    EXPECT_FALSE(read_back(text).has_value()) << text;
  }
}

TEST(Sources, MoreThanTheyAreWorthAreLeftOut) {
  std::vector<std::uint64_t> ranks;
  for (std::uint64_t rank = 0; rank < 10'000; rank += 2) ranks.push_back(rank);
  EXPECT_FALSE(encode_sources(ranks).has_value());
}

Piece placed(const std::string& name, std::vector<std::uint64_t> shape, const std::shared_ptr<const Mesh>& mesh,
             std::vector<Cut> cuts, std::uint64_t rank) {
  Piece piece{name, Dtype::f32, std::move(shape), {}, Sharding{mesh, std::move(cuts)}};
  piece.box = shard_box(*piece.sharding, piece.shape, *mesh->position_of(rank));
  return piece;
}

// Two stages of a pipeline, each a mesh of 2 by 2: cut along both dimensions, along one, along none; scalars that a
// stage holds, one that all hold, and what a rank alone has.
Pieces pipeline(std::uint64_t rank, std::uint64_t world) {
  const std::uint64_t stage = rank / (world / 2);
  const std::string name = "stage" + std::to_string(stage);
  const std::uint64_t rows = world / 4;
  const auto mesh = std::make_shared<const Mesh>(*Mesh::regular({rows, 2}, stage * world / 2, {2, 1}));
  Pieces pieces{placed(name + ".both", {37, 50}, mesh, {{0, 0}, {1, 1}}, rank),
                placed(name + ".rows", {41, 3}, mesh, {{0, 0}}, rank),
                placed(name + ".columns", {5, 30}, mesh, {{1, 1}}, rank),
                placed(name + ".alike", {1000}, mesh, {}, rank),
                placed(name + ".few", {1, 2}, mesh, {{0, 0}}, rank),
                placed(name + ".none", {0, 2}, mesh, {{0, 0}}, rank),
                whole("step", Dtype::i64, {}),
                test::shard("wide", Dtype::f32, {100, 3}, 0, rank, world),
                whole("rank" + std::to_string(rank), Dtype::u8, {100}),
                whole(name + ".plain", Dtype::u8, {300})};
  for (int i = 0; i < 3; ++i) pieces.push_back(whole(name + ".step" + std::to_string(i), Dtype::i64, {}));
  return pieces;
}

class OpenOwn : public ::testing::Test {
 protected:
  [[nodiscard]] std::unique_ptr<Checkpoint> open(std::uint64_t rank, std::uint64_t world) const {
    auto opened = Checkpoint::open_own(io::system_files(), root(), 1, rank, world);
    IC_ASSERT(opened.ok());
    return std::move(opened).value();
  }
  [[nodiscard]] std::string root() const { return temp_.path().string(); }
  [[nodiscard]] std::string segment_of(std::uint64_t rank) const {
    const auto checkpoint = test::open_saved(root(), 1);
    return checkpoint->path_of(rank, checkpoint->indexes()[rank].segments.at(0));
  }
  static Memory memory_for(const Pieces& pieces) {
    Memory memory;
    for (const Piece& piece : pieces) memory.add(piece, 0, false);
    return memory;
  }

  testing::TempDir temp_;
};

TEST_F(OpenOwn, ARankReadsTheIndexesThatItNeedsAndGetsWhatItSaved) {
  test::save(root(), &pipeline, {.step = 1, .world = kWorld, .seed = 7});
  const auto all = test::open_saved(root(), 1);
  EXPECT_TRUE(all->is_whole());
  for (std::uint64_t rank = 0; rank < kWorld; ++rank) {
    const auto own = open(rank, kWorld);
    ASSERT_FALSE(own->is_whole());
    std::uint64_t read = 0;
    for (const manifest::Index& index : own->indexes()) read += index.save_id.empty() ? 0U : 1U;
    EXPECT_LE(read, kWorld / 2 + 1) << "its stage, and whoever wrote what all hold";
    EXPECT_LT(own->index_bytes(), all->index_bytes());
    Memory memory = memory_for(pipeline(rank, kWorld));
    EXPECT_TRUE(own->covers(memory.targets()));
    const auto report = own->restore(memory.targets(), {});
    ASSERT_TRUE(report.ok()) << report.error().to_string();
    EXPECT_EQ(report->index_bytes, own->index_bytes());
    EXPECT_EQ(memory.difference(7), "");
  }
}

TEST_F(OpenOwn, MoreIsRefusedAndThereInTheWhole) {
  test::save(root(), &pipeline, {.step = 1, .world = kWorld, .seed = 7});
  const auto own = open(1, kWorld);
  for (const Piece& piece : {whole("wide", Dtype::f32, {100, 3}), whole("rank6", Dtype::u8, {100})}) {
    Memory memory = memory_for({piece});
    EXPECT_FALSE(own->covers(memory.targets()));
    const auto report = own->restore(memory.targets(), {});
    ASSERT_FALSE(report.ok());
    EXPECT_EQ(report.error().code(), ErrorCode::not_found);
    EXPECT_NE(report.error().message().find("opened for what one rank saved"), std::string::npos);
    EXPECT_TRUE(test::open_saved(root(), 1)->restore(memory.targets(), {}).ok());
    EXPECT_EQ(memory.difference(7), "");
  }
  EXPECT_FALSE(own->verify({}).ok());
}

TEST_F(OpenOwn, OfAnotherWorldItIsTheWhole) {
  test::save(root(), &pipeline, {.step = 1, .world = kWorld, .seed = 7});
  EXPECT_TRUE(open(0, 4)->is_whole());
  EXPECT_TRUE(open(8, 8)->is_whole());
  EXPECT_FALSE(Checkpoint::open_own(io::system_files(), root(), 2, 0, kWorld).ok());
}

TEST_F(OpenOwn, OfAReleaseThatDidNotSayItIsTheWhole) {
  const auto golden = Checkpoint::open_own(io::system_files(), std::string(IC_GOLDEN) + "/checkpoint-v1", 7, 0, 2);
  ASSERT_TRUE(golden.ok()) << golden.error().to_string();
  EXPECT_TRUE((*golden)->is_whole());
}

TEST_F(OpenOwn, WhatOthersNeedMayBeDamaged) {
  test::save(root(), &pipeline, {.step = 1, .world = kWorld, .seed = 7});
  std::filesystem::resize_file(segment_of(7), 10);
  EXPECT_FALSE(Checkpoint::open(io::system_files(), root(), 1).ok());
  EXPECT_FALSE(Checkpoint::open_own(io::system_files(), root(), 1, 7, kWorld).ok());
  EXPECT_FALSE(open(0, kWorld)->is_whole());
}

// The plan's own idea of who writes what a rank holds, against who does.
TEST(OwnShare, SourcesAreThoseWhoWriteWhatARankHolds) {
  for (const std::uint64_t world : {4U, 8U, 16U, 24U}) {
    std::vector<Group> groups;
    for (std::uint64_t rank = 0; rank < world; ++rank) {
      const Pieces pieces = pipeline(rank, world);
      groups.push_back({digest_of(encode_pieces(pieces)), pieces, {rank}});
    }
    const auto plan = plan_writes(groups, world);
    ASSERT_TRUE(plan.ok()) << plan.error().to_string();
    std::vector<OwnShare> shares;
    for (std::uint64_t rank = 0; rank < world; ++rank)
      shares.push_back(own_share(groups[rank].pieces, rank, plan->writers[rank]));
    for (std::uint64_t rank = 0; rank < world; ++rank) {
      ASSERT_TRUE(shares[rank].sources.has_value());
      for (const Piece& piece : groups[rank].pieces) {
        bool found = piece.box.lengths == std::vector<std::uint64_t>{0, 2} || *check_piece(piece) == 0;
        for (const std::uint64_t source : *shares[rank].sources) {
          for (const std::size_t written : shares[source].writes) {
            const Piece& its = groups[source].pieces[written];
            found |= its.tensor == piece.tensor && its.box == piece.box;
          }
        }
        EXPECT_TRUE(found) << "rank " << rank << " of " << world << ": " << piece.tensor;
      }
    }
  }
}

}  // namespace
}  // namespace infercluster::checkpoint
