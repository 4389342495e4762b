// SPDX-License-Identifier: Apache-2.0
#include "target/address_space.h"

#include <gtest/gtest.h>

#include <fstream>

#include "testing/temp_dir.h"

namespace infercluster::target {
namespace {

class AddressSpaceTest : public ::testing::Test {
 protected:
  std::shared_ptr<const Object> object(std::uint64_t bytes) {
    const std::string path = directory_.file("object") + std::to_string(made_++);
    std::ofstream(path) << std::string(bytes, 'x');
    Result<std::shared_ptr<const Object>> opened = Object::open(path);
    EXPECT_TRUE(opened.ok());
    return *opened;
  }

  testing::TempDir directory_;
  int made_ = 0;
  AddressSpace space_;
};

// "z3 o5@2 z1": zeros of 3 blocks, 5 of an object's from its block 2, 1 of zeros.
std::string text(const std::optional<Pieces>& pieces) {
  if (!pieces) return "gone";
  std::string all;
  for (std::size_t i = 0; i < pieces->count; ++i) {
    const Piece& piece = pieces->list[i];
    all += (i > 0 ? " " : "") + (piece.object
                                     ? "o" + std::to_string(piece.blocks) + "@" + std::to_string(piece.first_block)
                                     : "z" + std::to_string(piece.blocks));
  }
  return all;
}

TEST_F(AddressSpaceTest, BothEndsAreZeros) {
  EXPECT_EQ(text(space_.find(0, 1)), "z1");
  EXPECT_EQ(text(space_.find(kEdgeBlocks - 256, 256)), "z256");
  EXPECT_EQ(text(space_.find(kEdgeBlocks - 1, 2)), "gone");
  EXPECT_EQ(text(space_.find(kSpaceBlocks - 1, 1)), "z1");
  EXPECT_EQ(text(space_.find(kSpaceBlocks - kEdgeBlocks, 256)), "z256");
  EXPECT_EQ(text(space_.find(kSpaceBlocks - kEdgeBlocks - 1, 1)), "gone");
  EXPECT_EQ(text(space_.find(kSpaceBlocks, 1)), "gone");
  EXPECT_EQ(text(space_.find(kSpaceBlocks - 1, 2)), "gone");
  EXPECT_EQ(text(space_.find(UINT64_MAX, 2)), "gone");
}

TEST_F(AddressSpaceTest, AnObjectLiesBetweenZeros) {
  const Result<Mapping> mapping = space_.add(object(5 * kBlockBytes + 1));
  ASSERT_TRUE(mapping.ok());
  const std::uint64_t first = mapping->first_block;
  EXPECT_EQ(first, kEdgeBlocks);
  EXPECT_EQ(text(space_.find(first, 6)), "o6@0");
  EXPECT_EQ(text(space_.find(first - 2, 256)), "z2 o6@0 z248");
  EXPECT_EQ(text(space_.find(first + 3, 4)), "o3@3 z1");
  EXPECT_EQ(text(space_.find(first + 6 + kGuardBlocks - 1, 1)), "z1");
  EXPECT_EQ(text(space_.find(first + 6 + kGuardBlocks, 1)), "gone");
  EXPECT_EQ(text(space_.find(first + 6 + kGuardBlocks - 1, 2)), "gone");
}

TEST_F(AddressSpaceTest, RangesAreNeverGivenOutAgain) {
  const Mapping first = *space_.add(object(kBlockBytes));
  EXPECT_TRUE(space_.unmap(first.first_block));
  EXPECT_FALSE(space_.unmap(first.first_block));
  EXPECT_EQ(text(space_.find(first.first_block, 1)), "gone");
  EXPECT_EQ(text(space_.find(first.first_block + 1, 1)), "gone") << "nor is what lay behind it";
  const Mapping second = *space_.add(object(kBlockBytes));
  EXPECT_EQ(second.first_block, first.first_block + 1 + kGuardBlocks);
  EXPECT_EQ(text(space_.find(first.first_block, 1)), "gone");
  EXPECT_EQ(text(space_.find(second.first_block, 1)), "o1@0");
}

TEST_F(AddressSpaceTest, AReadHoldsItsObjectBeyondTheUnmapping) {
  Mapping mapping = *space_.add(object(kBlockBytes));
  const std::weak_ptr<const Object> watched = std::exchange(mapping.object, nullptr);
  std::optional<Pieces> pieces = space_.find(mapping.first_block, 1);
  ASSERT_TRUE(space_.unmap(mapping.first_block));
  EXPECT_FALSE(watched.expired());
  pieces.reset();
  EXPECT_TRUE(watched.expired());
}

TEST_F(AddressSpaceTest, ARestartPutsObjectsWhereTheyWere) {
  AddressSpace space(kEdgeBlocks + 1'000'000);
  const Mapping mapping{.first_block = kEdgeBlocks + 10, .object = object(3 * kBlockBytes)};
  ASSERT_TRUE(space.restore(mapping).ok());
  EXPECT_EQ(text(space.find(mapping.first_block, 3)), "o3@0");
  EXPECT_EQ(space.add(object(kBlockBytes))->first_block, kEdgeBlocks + 1'000'000);
  const std::shared_ptr<const Object> other = object(kBlockBytes);
  for (const std::uint64_t at :
       {kEdgeBlocks - 1, mapping.first_block, mapping.first_block + 3 + kGuardBlocks - 1,
        mapping.first_block - kGuardBlocks, kEdgeBlocks + 1'000'000 - kGuardBlocks, std::uint64_t{0}, UINT64_MAX}) {
    EXPECT_FALSE(space.restore({.first_block = at, .object = other}).ok()) << at;
  }
  EXPECT_TRUE(space.restore({.first_block = mapping.first_block + 3 + kGuardBlocks, .object = other}).ok());
}

TEST_F(AddressSpaceTest, ASpaceThatIsUsedUpSaysSo) {
  AddressSpace space(kSpaceBlocks - kEdgeBlocks - kGuardBlocks - 2);
  ASSERT_TRUE(space.add(object(2 * kBlockBytes)).ok());
  const Result<Mapping> none = space.add(object(1));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code(), ErrorCode::too_large);
  EXPECT_FALSE(none.error().hint().empty());
}

}  // namespace
}  // namespace infercluster::target
