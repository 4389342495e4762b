// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are there, for what is done with them.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include "checkpoint/checkpoint_test_helpers.h"
#include "exchange/exchange_test_helpers.h"
#include "exchange/store.h"

namespace infercluster::checkpoint::test {

struct Saving {
  std::uint64_t step = 1;
  std::uint64_t world = 1;
  std::uint64_t seed = 7;
  std::string text = "same";  // of the metadata's key "note"
};

using PiecesOf = std::function<Pieces(std::uint64_t rank, std::uint64_t world)>;

inline void save(const std::string& root, const PiecesOf& pieces_of, const Saving& saving) {
  const auto store = std::make_shared<exchange::MemoryStore>();
  const int world = static_cast<int>(saving.world);
  exchange::run_ranks(exchange::ranks_of(world), [&](int rank) {
    auto ranks = exchange::open_over_store(store, {rank, world}, exchange::deadline_in(std::chrono::seconds(60)));
    ASSERT_TRUE(ranks.ok()) << ranks.error().to_string();
    Options options;
    options.exchange = ranks->get();
    options.retention.keep = 0;
    auto checkpointer = Checkpointer::open(root, options);
    ASSERT_TRUE(checkpointer.ok()) << checkpointer.error().to_string();
    Memory memory;
    for (const Piece& piece : pieces_of(static_cast<std::uint64_t>(rank), saving.world)) memory.add(piece, saving.seed);
    State state = memory.state();
    state.metadata = {{"note", saving.text}};
    const auto saved = (*checkpointer)->save(saving.step, state, {.wait = Wait::until_durable});
    ASSERT_TRUE(saved.ok()) << saved.error().to_string();
  });
}

// A mesh of two rows of ranks where the world is even: 2-D boxes; else rows. And what all hold, and odd shapes.
inline Pieces mesh_pieces(std::uint64_t rank, std::uint64_t world) {
  Pieces pieces{shard("model.rows", Dtype::f32, {10, 7}, 0, rank, world),
                shard("model.columns", Dtype::u8, {300, 1000}, 1, rank, world),
                whole("model.alike", Dtype::f64, {5, 5}), whole("model.none", Dtype::f16, {3, 0}),
                whole("optim.step", Dtype::i64, {})};
  const bool even = world % 2 == 0;
  Piece grid = shard("model.grid", Dtype::bf16, {90, 70, 3}, 0, even ? rank / 2 : rank, even ? world / 2 : world);
  if (even) {
    const Piece half = shard("model.grid", Dtype::bf16, {90, 70, 3}, 1, rank % 2, 2);
    grid.box.offsets[1] = half.box.offsets[1];
    grid.box.lengths[1] = half.box.lengths[1];
  }
  pieces.push_back(grid);
  return pieces;
}

inline std::unique_ptr<Checkpoint> open_saved(const std::string& root, std::uint64_t step) {
  auto checkpoint = Checkpoint::open(io::system_files(), root, step);
  IC_ASSERT(checkpoint.ok());
  return std::move(checkpoint).value();
}

// One bit of the byte at `offset`; from the end where it is negative.
inline void flip(const std::string& path, std::int64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto at = offset >= 0 ? offset : static_cast<std::int64_t>(std::filesystem::file_size(path)) + offset;
  file.seekg(at);
  const char byte = static_cast<char>(file.get());
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 1));
  IC_ASSERT(file.good());
}

}  // namespace infercluster::checkpoint::test
