// SPDX-License-Identifier: Apache-2.0
#include "load/block_pool.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace infercluster::load {
namespace {

class BlockPoolTest : public ::testing::Test {
 protected:
  std::shared_ptr<BlockPool> pool_ =
      std::make_shared<BlockPool>(make_host_target(), 4 * kMiB, [this] { ++idle_calls_; });
  int idle_calls_ = 0;

  memory::Block acquire(std::uint64_t bytes) {
    auto acquired = pool_->acquire(bytes).value();
    return acquired ? acquired->block : memory::Block{};
  }
};

TEST_F(BlockPoolTest, ABlockIsReusedOnceItsLeaseIsGone) {
  memory::Block block = acquire(2 * kMiB);
  const std::byte* place = block.span.host();
  auto lease = pool_->lease(block);
  block = {};
  const memory::Block second = acquire(2 * kMiB);
  ASSERT_TRUE(second);
  EXPECT_NE(second.span.host(), place);
  EXPECT_FALSE(acquire(kMiB));  // the window is full
  lease.reset();
  EXPECT_EQ(idle_calls_, 1);
  EXPECT_EQ(acquire(kMiB + 1).span.host(), place);
  EXPECT_EQ(pool_->peak_bytes(), 4 * kMiB);
}

TEST_F(BlockPoolTest, IdleBlocksOfTheWrongSizeMakeRoom) {
  pool_->lease(acquire(kMiB)).reset();
  pool_->lease(acquire(kMiB)).reset();
  EXPECT_TRUE(acquire(4 * kMiB));
  EXPECT_EQ(pool_->peak_bytes(), 4 * kMiB);
}

TEST_F(BlockPoolTest, DonatedBlocksLeaveTheWindowAndAreCountedUntilTheyAreLetGo) {
  auto kept = pool_->lease(acquire(3 * kMiB));
  EXPECT_EQ(pool_->donate_leased().value(), 1U);
  auto also_kept = pool_->lease(acquire(2 * kMiB));
  const auto too_much = pool_->donate_leased();
  ASSERT_FALSE(too_much.ok());
  EXPECT_EQ(too_much.error().code(), ErrorCode::too_large);
  kept.reset();
  also_kept.reset();
  EXPECT_EQ(idle_calls_, 0);  // they went to their keepers for good
  EXPECT_TRUE(acquire(4 * kMiB));
}

TEST_F(BlockPoolTest, LeasesOutliveThePoolsOwner) {
  memory::Block block = acquire(kMiB);
  auto lease = pool_->lease(block);
  pool_->detach();
  pool_.reset();
  block.span.host()[0] = std::byte{1};
  block = {};
  lease.reset();
  EXPECT_EQ(idle_calls_, 0);
}

}  // namespace
}  // namespace infercluster::load
