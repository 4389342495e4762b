// SPDX-License-Identifier: Apache-2.0
// Checkpoints of every released format, as their release wrote them (tests/golden): each later release reads them.
// They are never written again: a change of the format gets a folder of its own.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/checkpoint_test_helpers.h"
#include "checkpoint/restore.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

using test::Dtype;
using test::Memory;
using test::shard;
using test::whole;

constexpr char kVersion1[] = IC_GOLDEN "/checkpoint-v1";

// What two ranks saved with seed 42 as step 7.
Pieces pieces_of(std::uint64_t rank) {
  return {shard("layer.weight", Dtype::bf16, {5, 6}, 0, rank, 2),
          shard("layer.columns", Dtype::f32, {4, 6}, 1, rank, 2), whole("alike", Dtype::i64, {3}),
          whole("größe", Dtype::u8, {}), whole("none", Dtype::f16, {0, 2})};
}

TEST(Golden, VersionOneIsRead) {
  auto checkpoint = Checkpoint::open(io::system_files(), kVersion1, 7);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
  EXPECT_EQ((*checkpoint)->commit().world, 2U);
  EXPECT_EQ((*checkpoint)->commit().epoch, 1U);
  ASSERT_EQ((*checkpoint)->indexes().size(), 2U);
  EXPECT_EQ((*checkpoint)->indexes()[1].metadata, (manifest::Metadata{{"rank", "1"}}));
  EXPECT_EQ((*checkpoint)->tensors().size(), 5U);
  Memory memory;
  for (const Piece& piece : pieces_of(0)) memory.add(whole(piece.tensor, piece.dtype, piece.shape), 0, false);
  const auto report = (*checkpoint)->restore(memory.targets(), {});
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_EQ(memory.difference(42), "");
}

TEST(Golden, ANewerVersionIsRefusedByItsNumberAndLeftAlone) {
  const testing::TempDir temp;
  std::filesystem::copy(kVersion1, temp.path(), std::filesystem::copy_options::recursive);
  const std::string path = temp.file("step-7/COMMIT");
  std::string text = *os::read_small_file(path, 1 << 20);
  text.replace(text.find("\"version\":1"), 11, "\"version\":2");
  temp.write("step-7/COMMIT", text);
  auto checkpoint = Checkpoint::open(io::system_files(), temp.path().string(), 7);
  ASSERT_FALSE(checkpoint.ok());
  EXPECT_EQ(checkpoint.error().code(), ErrorCode::unsupported);
  EXPECT_NE(checkpoint.error().message().find("version 2"), std::string::npos) << checkpoint.error().to_string();
  EXPECT_EQ(checkpoint.error().path(), path);
  auto checkpointer = Checkpointer::open(temp.path().string(), {});
  Memory memory;
  memory.add(whole("x", Dtype::u8, {1}), 1);
  const auto save = (*checkpointer)->save(7, memory.state(), {Wait::until_durable, Exists::replace});
  ASSERT_FALSE(save.ok());
  EXPECT_EQ(save.error().code(), ErrorCode::unsupported);
  EXPECT_TRUE((*checkpointer)->save(8, memory.state(), {.wait = Wait::until_durable}).ok());
  EXPECT_EQ(*os::read_small_file(path, 1 << 20), text);
}

}  // namespace
}  // namespace infercluster::checkpoint
