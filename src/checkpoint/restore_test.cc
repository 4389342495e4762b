// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/restore.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/checkpoint_test_helpers.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/restore_plan.h"
#include "exchange/exchange_test_helpers.h"
#include "exchange/store.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

using test::Dtype;
using test::Memory;
using test::Shape;
using test::shard;
using test::whole;

constexpr std::uint64_t kSeed = 7;

// Rank `rank` of `world`: rows of uneven parts, columns, a grid of two by world / 2 where that is whole, all alike.
Pieces pieces_of(std::uint64_t rank, std::uint64_t world) {
  Pieces pieces{shard("rows", Dtype::f32, {10, 7}, 0, rank, world),
                shard("many", Dtype::bf16, {4096, 33}, 0, rank, world),
                shard("columns", Dtype::u8, {300, 1000}, 1, rank, world),
                whole("alike", Dtype::f64, {5, 5}),
                whole("scalar", Dtype::i64, {}),
                whole("none", Dtype::f16, {3, 0})};
  Piece grid =
      shard("grid", Dtype::i16, {90, 70, 3}, 0, world % 2 == 0 ? rank / 2 : rank, world % 2 == 0 ? world / 2 : world);
  if (world % 2 == 0) {
    const Piece half = shard("grid", Dtype::i16, {90, 70, 3}, 1, rank % 2, 2);
    grid.box.offsets[1] = half.box.offsets[1];
    grid.box.lengths[1] = half.box.lengths[1];
  }
  pieces.push_back(grid);
  return pieces;
}

Memory memory_of(std::uint64_t rank, std::uint64_t world, bool fill) {
  Memory memory;
  for (const Piece& piece : pieces_of(rank, world)) memory.add(piece, kSeed, fill);
  return memory;
}

void save_by(const std::string& root, int world, std::uint64_t step) {
  const auto store = std::make_shared<exchange::MemoryStore>();
  exchange::run_ranks(exchange::ranks_of(world), [&](int rank) {
    auto ranks = exchange::open_over_store(store, {rank, world}, exchange::deadline_in(std::chrono::seconds(60)));
    ASSERT_TRUE(ranks.ok()) << ranks.error().to_string();
    Options options;
    options.exchange = ranks->get();
    auto checkpointer = Checkpointer::open(root, options);
    ASSERT_TRUE(checkpointer.ok());
    const Memory memory = memory_of(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(world), true);
    const auto save = (*checkpointer)->save(step, memory.state(), {.wait = Wait::until_durable});
    ASSERT_TRUE(save.ok()) << save.error().to_string();
    const auto latest = (*checkpointer)->agree_on_latest();
    ASSERT_TRUE(latest.ok()) << latest.error().to_string();
    EXPECT_EQ(*latest, step);
  });
}

class Restore : public test::OnEachDevice {};

// Case P05: every element once, and equal, whatever the meshes.
TEST_P(Restore, AnyWorldReadsWhatAnyWorldSaved) {
  const testing::TempDir temp;
  std::uint64_t step = 0;
  for (const int saved : {1, 3, 4, 8}) {
    save_by(temp.path().string(), saved, ++step);
    auto checkpoint = Checkpoint::open(io::system_files(), temp.path().string(), step);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
    EXPECT_EQ((*checkpoint)->commit().world, static_cast<std::uint64_t>(saved));
    for (const std::uint64_t loading : {1U, 2U, 3U, 7U, 16U, 30U}) {
      for (std::uint64_t rank = 0; rank < loading; ++rank) {
        const Memory memory = memory_of(rank, loading, false);
        const auto report = (*checkpoint)->restore(memory.targets(), {});
        ASSERT_TRUE(report.ok()) << report.error().to_string();
        ASSERT_EQ(memory.difference(kSeed), "") << saved << " -> " << loading << ", rank " << rank;
      }
    }
  }
}

TEST_P(Restore, ReadsOnlyWhatIsNeededAndEachBlockOnce) {
  const testing::TempDir temp;
  Memory memory;
  memory.add(whole("big", Dtype::u8, {100, 65'536}), kSeed);
  auto checkpointer = Checkpointer::open(temp.path().string(), {});
  ASSERT_TRUE((*checkpointer)->save(1, memory.state(), {.wait = Wait::until_durable}).ok());
  auto checkpoint = Checkpoint::open(io::system_files(), temp.path().string(), 1);
  Memory rows;
  Piece piece = whole("big", Dtype::u8, {100, 65'536});
  piece.box = {{10, 0}, {5, 65'536}};
  rows.add(piece, 0, false);
  rows.add(piece, 0, false);  // the same bytes again
  const auto report = (*checkpoint)->restore(rows.targets(), {});
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_EQ(rows.difference(kSeed), "");
  EXPECT_EQ(report->bytes_wanted, 2U * 5 * 65'536);
  EXPECT_EQ(report->bytes_read, 6U * 65'536);  // the header shifts rows over the grid
}

// Case P07: nothing is rounded or reshaped unasked, and all that is wrong is named at once.
TEST_P(Restore, OtherTypesShapesAndMissingNamesAreRefused) {
  const testing::TempDir temp;
  Memory memory;
  memory.add(whole("a", Dtype::f32, {6, 4}), kSeed);
  memory.add(whole("b", Dtype::f32, {6, 4}), kSeed);
  auto checkpointer = Checkpointer::open(temp.path().string(), {});
  ASSERT_TRUE((*checkpointer)->save(1, memory.state(), {.wait = Wait::until_durable}).ok());
  auto checkpoint = Checkpoint::open(io::system_files(), temp.path().string(), 1);
  Memory other;
  other.add(whole("a", Dtype::bf16, {6, 4}), 0, false);
  other.add(whole("b", Dtype::f32, {4, 6}), 0, false);
  const auto refused = (*checkpoint)->restore(other.targets(), {});
  ASSERT_FALSE(refused.ok());
  const std::string text = refused.error().to_string();
  EXPECT_NE(text.find("a (saved F32 [6, 4], wanted BF16 [6, 4])"), std::string::npos) << text;
  EXPECT_NE(text.find("b (saved F32 [6, 4], wanted F32 [4, 6])"), std::string::npos) << text;
  Memory absent;
  absent.add(whole("x", Dtype::f32, {1}), 0, false);
  absent.add(whole("y", Dtype::f32, {1}), 0, false);
  const auto missing = (*checkpoint)->restore(absent.targets(), {});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), ErrorCode::not_found);
  EXPECT_NE(missing.error().message().find("x, y"), std::string::npos) << missing.error().message();
}

TEST_P(Restore, AFlippedByteIsFoundAndNamed) {
  const testing::TempDir temp;
  Memory memory;
  memory.add(whole("a", Dtype::u8, {200'000}), kSeed);
  memory.add(whole("b", Dtype::u8, {200'000}), kSeed);
  auto checkpointer = Checkpointer::open(temp.path().string(), {});
  ASSERT_TRUE((*checkpointer)->save(1, memory.state(), {.wait = Wait::until_durable}).ok());
  const std::string segment = temp.file("step-1/node-0.0.1.safetensors");
  auto checkpoint = Checkpoint::open(io::system_files(), temp.path().string(), 1);
  const auto intact = (*checkpoint)->verify({});
  ASSERT_TRUE(intact.ok()) << intact.error().to_string();
  EXPECT_EQ(intact->bytes_read, std::filesystem::file_size(segment));
  const auto size = std::filesystem::file_size(segment);
  std::fstream file(segment, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(size - 1));
  const char last = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(size - 1));
  file.put(static_cast<char>(last ^ 1));
  file.close();
  const auto verified = (*checkpoint)->verify({});
  ASSERT_FALSE(verified.ok());
  EXPECT_EQ(verified.error().tensor(), "b");
  const auto report = (*checkpoint)->restore(memory.targets(), {});
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code(), ErrorCode::corrupt);
  EXPECT_EQ(report.error().path(), segment);
  EXPECT_EQ(report.error().tensor(), "b");
  EXPECT_EQ(report.error().offset(), size / 65'536 * 65'536);
  Memory good;
  good.add(whole("a", Dtype::u8, {200'000}), 0, false);
  EXPECT_TRUE((*checkpoint)->restore(good.targets(), {}).ok());
  EXPECT_EQ(good.difference(kSeed), "");
}

// So many that several threads read them.
TEST_P(Restore, OfManyIndexesTheDamagedOneIsNamed) {
  const testing::TempDir temp;
  save_by(temp.path().string(), 24, 1);
  const auto open = [&] { return Checkpoint::open(io::system_files(), temp.path().string(), 1); };
  const auto whole = open();
  ASSERT_TRUE(whole.ok()) << whole.error().to_string();
  ASSERT_EQ((*whole)->indexes().size(), 24U);
  for (std::size_t i = 0; i < 24; ++i) EXPECT_EQ((*whole)->indexes()[i].node, i);
  for (const int number : {17, 5}) {
    const std::string name = temp.file("step-1/node-" + std::to_string(number) + ".1.index.json");
    std::filesystem::resize_file(name, std::filesystem::file_size(name) - 1);
    const auto cut = open();
    ASSERT_FALSE(cut.ok());
    EXPECT_EQ(cut.error().code(), ErrorCode::corrupt);
    EXPECT_EQ(cut.error().path(), name) << "the first of those that are damaged";
  }
}

TEST(BoxCopy, ElementsOfLessThanAByteAreCutAtWholeBytes) {
  const manifest::Chunk chunk{"f4", Dtype::f4, {4, 6}, manifest::whole_box({4, 6}), 0, 100, 12};
  const auto rows = BoxCopy::between(chunk, {{1, 0}, {2, 6}});
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ((*rows)->row_bytes(), 6U);
  EXPECT_EQ((*rows)->file_offset(0), 103U);
  EXPECT_FALSE(BoxCopy::between(chunk, {{0, 1}, {4, 2}}).ok());
  EXPECT_FALSE(BoxCopy::between(chunk, {{0, 0}, {4, 3}}).ok());
  const auto columns = BoxCopy::between(chunk, {{0, 2}, {4, 2}});
  ASSERT_TRUE(columns.ok());
  EXPECT_EQ((*columns)->rows(), 4U);
  EXPECT_EQ((*columns)->file_offset(3), 100U + 3 * 3 + 1);
}

INSTANTIATE_TEST_SUITE_P(State, Restore, test::every_device(), test::device_name);

}  // namespace
}  // namespace infercluster::checkpoint
