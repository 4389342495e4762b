// SPDX-License-Identifier: Apache-2.0
// Ranks whose tensors have placements, as threads: they agree, save, and what they saved comes back.
#include "checkpoint/agreement.h"

#include <gtest/gtest.h>

#include "base/log.h"
#include "checkpoint/checkpoint_test_helpers.h"
#include "exchange/exchange_test_helpers.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

using test::Dtype;
using test::Memory;
using test::memory_of;
using test::Shape;
using test::whole;

constexpr int kWorld = 16;

Piece placed(const std::string& name, const Shape& shape, const std::shared_ptr<const Mesh>& mesh,
             std::vector<Cut> cuts, std::uint64_t rank) {
  Piece piece{name, Dtype::f32, shape, {}, Sharding{mesh, std::move(cuts)}};
  piece.box = shard_box(*piece.sharding, shape, mesh->position_of(rank).value());
  return piece;
}

// Two stages of 4 x 2 ranks, case P05's uneven and empty shards among their tensors, and one tensor that both tie.
Pieces pieces_of(std::uint64_t rank) {
  const std::uint64_t stage = rank / 8;
  const auto mesh = std::make_shared<const Mesh>(*Mesh::regular({4, 2}, stage * 8, {2, 1}));
  const auto line = std::make_shared<const Mesh>(*Mesh::regular({8}, stage * 8, {1}));
  const std::string layer = "layer." + std::to_string(stage) + ".";
  return {placed(layer + "rows", {10, 7}, line, {{0, 0}}, rank),
          placed(layer + "columns", {5, 4}, mesh, {{0, 1}}, rank),
          placed(layer + "twice", {31, 3}, mesh, {{1, 0}, {0, 0}}, rank),
          placed(layer + "alike", {9}, mesh, {}, rank),
          placed(layer + "none", {0, 4}, mesh, {{0, 0}}, rank),
          placed("embedding", {33, 4}, mesh, {{0, 0}, {1, 1}}, rank),
          whole(layer + "step", Dtype::i64, {})};
}

class AgreementTest : public ::testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::off); }
  void TearDown() override { set_log_level(LogLevel::warning); }

  using Body = std::function<void(int rank, Checkpointer& checkpointer)>;
  void with_ranks(int world, const Body& body) {
    const auto store = std::make_shared<exchange::MemoryStore>();
    exchange::run_ranks(exchange::ranks_of(world), [&](int rank) {
      auto ranks = exchange::open_over_store(store, {rank, world}, exchange::deadline_in(std::chrono::seconds(60)));
      ASSERT_TRUE(ranks.ok()) << ranks.error().to_string();
      Options options;
      options.arena_bytes = 4 << 20;
      options.retention.keep = 0;  // all
      options.exchange = ranks->get();
      auto checkpointer = Checkpointer::open(temp_.path().string(), options);
      ASSERT_TRUE(checkpointer.ok());
      body(rank, **checkpointer);
    });
  }
  static SaveReport save(Checkpointer& checkpointer, std::uint64_t step, const Pieces& pieces) {
    const auto saved = checkpointer.save(step, memory_of(pieces, step).state(), {.wait = Wait::until_durable});
    EXPECT_TRUE(saved.ok()) << saved.error().to_string();
    return saved.ok() ? (*saved)->report() : SaveReport{};
  }
  // What keeps a step from coming back whole; empty: nothing.
  std::string problem(std::uint64_t step, const Pieces& more = {}) {
    auto checkpoint = Checkpoint::open(io::system_files(), temp_.path().string(), step);
    if (!checkpoint.ok()) return checkpoint.error().to_string();
    Memory memory;
    const auto add = [&](Piece piece) {
      piece.sharding.reset();
      piece.box = manifest::whole_box(piece.shape);
      memory.add(piece, 0, false);
    };
    for (const std::uint64_t rank : {0U, 8U}) {
      for (const Piece& piece : pieces_of(rank)) {
        if (rank == 0 || piece.tensor != "embedding") add(piece);
      }
    }
    for (const Piece& piece : more) add(piece);
    const auto report = (*checkpoint)->restore(memory.targets(), {});
    return report.ok() ? memory.difference(step) : report.error().to_string();
  }

  testing::TempDir temp_;
};

TEST_F(AgreementTest, WhatPlacedTensorsHeldComesBack) {
  const Pieces extra{whole("extra", Dtype::u8, {77})};
  with_ranks(kWorld, [&](int rank, Checkpointer& checkpointer) {
    Pieces pieces = pieces_of(static_cast<std::uint64_t>(rank));
    EXPECT_FALSE(save(checkpointer, 1, pieces).plan_reused);
    EXPECT_TRUE(save(checkpointer, 2, pieces).plan_reused);
    // One rank changes: the others' texts are known, and its own is asked for.
    if (rank == 5) pieces.push_back(extra[0]);
    EXPECT_FALSE(save(checkpointer, 3, pieces).plan_reused);
    EXPECT_TRUE(save(checkpointer, 4, pieces).plan_reused);
    if (rank == 5) pieces.pop_back();
    EXPECT_FALSE(save(checkpointer, 5, pieces).plan_reused);
  });
  EXPECT_EQ(problem(1), "");
  EXPECT_EQ(problem(2), "");
  EXPECT_EQ(problem(3, extra), "");
  EXPECT_EQ(problem(4, extra), "");
  EXPECT_EQ(problem(5), "");
}

TEST_F(AgreementTest, ARefusalIsTheSameOnAllRanksAndTheNextSaveWorks) {
  std::vector<std::string> by_one(kWorld);
  std::vector<std::string> by_all(kWorld);
  with_ranks(kWorld, [&](int rank, Checkpointer& checkpointer) {
    const Pieces pieces = pieces_of(static_cast<std::uint64_t>(rank));
    const auto refused = [&](const Pieces& odd) {
      const auto saved = checkpointer.save(1, memory_of(odd, 1).state(), {});
      return saved.ok() ? "saved" : saved.error().to_string();
    };
    Pieces odd = pieces;
    if (rank == 3) ++odd[0].box.offsets[0], --odd[0].box.lengths[0];
    by_one[static_cast<std::size_t>(rank)] = refused(odd);
    odd = pieces;
    if (rank == 11) odd.erase(odd.begin() + 2);
    by_all[static_cast<std::size_t>(rank)] = refused(odd);
    save(checkpointer, 2, pieces);
  });
  for (const auto& texts : {by_one, by_all}) {
    for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
  }
  const auto expect_in = [](const std::string& part, const std::string& text) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect_in("rank 3 holds the box [7:8, 0:7], and by its placement it would be [6:8, 0:7]", by_one[0]);
  expect_in("\"layer.0.rows\"", by_one[0]);
  expect_in("1 of the 8 ranks in the mesh of its placement do not hold it that way: rank 11 with", by_all[0]);
  expect_in("\"layer.1.twice\"", by_all[0]);
  EXPECT_EQ(problem(2), "");
}

Result<Answer> opened(Coordinator& coordinator, const std::vector<Opening>& openings) {
  std::vector<std::string> texts;
  for (const Opening& opening : openings) texts.push_back(encode(opening));
  return coordinator.open(texts, 1, "0123456789abcdef");
}

TEST(Coordinator, AsksOneRankOfEachGroupOnce) {
  Coordinator coordinator;
  const std::string a = encode_pieces({whole("a", Dtype::u8, {4})});
  const std::string b = encode_pieces({whole("b", Dtype::u8, {4})});
  const auto opening = [](const std::string& text) {
    return Opening{.step = 1, .failure = "", .digest = digest_of(text), .plan_hash = ""};
  };
  auto answer = opened(coordinator, {opening(a), opening(a), opening(b), opening(b)});
  EXPECT_EQ(answer->speakers, (std::vector<std::uint64_t>{0, 2}));
  answer = coordinator.plan({a, "", b, ""});
  EXPECT_EQ(answer->refusal, "");
  EXPECT_FALSE(answer->plan.empty());
  const std::string c = encode_pieces({whole("c", Dtype::u8, {4})});
  answer = opened(coordinator, {opening(a), opening(c), opening(b), opening(b)});
  EXPECT_EQ(answer->speakers, std::vector<std::uint64_t>{1});
  EXPECT_FALSE(coordinator.plan({"", b, "", ""}).ok()) << "it gave another text than it had said";
  answer = opened(coordinator, {opening(a), opening(a), opening(b), opening(b)});
  EXPECT_EQ(answer->speakers, (std::vector<std::uint64_t>{0, 2})) << "known again only when a plan was made";
}

TEST(Coordinator, OnlyAPlanThatAllHaveStands) {
  Coordinator coordinator;
  const std::string text = encode_pieces({whole("a", Dtype::u8, {4})});
  Opening opening{.step = 1, .failure = "", .digest = digest_of(text), .plan_hash = std::string(32, 'a')};
  EXPECT_TRUE(opened(coordinator, {opening, opening})->reused);
  Opening other = opening;
  other.plan_hash = std::string(32, 'b');
  EXPECT_EQ(opened(coordinator, {opening, other})->speakers, std::vector<std::uint64_t>{0});
  other.plan_hash = "";
  EXPECT_FALSE(opened(coordinator, {other, other})->reused);
}

TEST(Coordinator, TextsCutShortAreErrors) {
  const Opening opening{3, Exists::replace, 2, "cause", "digest", "hash"};
  const std::string text = encode(opening);
  EXPECT_EQ(encode(*decode_opening(text)), text);
  for (std::size_t size = 0; size < text.size(); ++size) EXPECT_FALSE(decode_opening(text.substr(0, size)).ok());
  const std::string answer = encode(Answer{4, "id", 1, "refusal", {1, 2}, true, "plan"});
  EXPECT_EQ(encode(*decode_answer(answer)), answer);
  for (std::size_t size = 0; size < answer.size(); ++size) EXPECT_FALSE(decode_answer(answer.substr(0, size)).ok());
  Coordinator coordinator;
  EXPECT_FALSE(coordinator.open({text, "x"}, 1, "id").ok());
}

}  // namespace
}  // namespace infercluster::checkpoint
