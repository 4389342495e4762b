// SPDX-License-Identifier: Apache-2.0
#include "load/block_pool.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace infercluster::load {
namespace {

class BlockPoolTest : public ::testing::Test {
 protected:
  std::shared_ptr<BlockPool> pool_ = std::make_shared<BlockPool>(4 * kMiB, [this] { ++idle_calls_; });
  int idle_calls_ = 0;
};

TEST_F(BlockPoolTest, ABlockIsReusedOnceItsLeaseIsGone) {
  auto arena = pool_->acquire(2 * kMiB).value();
  const std::byte* place = arena->data();
  auto lease = pool_->lease(arena);
  arena.reset();
  auto second = pool_->acquire(2 * kMiB).value();
  ASSERT_NE(second, nullptr);
  EXPECT_NE(second->data(), place);
  EXPECT_EQ(pool_->acquire(kMiB).value(), nullptr);  // the window is full
  lease.reset();
  EXPECT_EQ(idle_calls_, 1);
  EXPECT_EQ(pool_->acquire(kMiB + 1).value()->data(), place);
  EXPECT_EQ(pool_->peak_bytes(), 4 * kMiB);
}

TEST_F(BlockPoolTest, IdleBlocksOfTheWrongSizeMakeRoom) {
  pool_->lease(pool_->acquire(kMiB).value()).reset();
  pool_->lease(pool_->acquire(kMiB).value()).reset();
  EXPECT_NE(pool_->acquire(4 * kMiB).value(), nullptr);
  EXPECT_EQ(pool_->peak_bytes(), 4 * kMiB);
}

TEST_F(BlockPoolTest, DonatedBlocksLeaveTheWindowAndAreCountedUntilTheyAreLetGo) {
  auto kept = pool_->lease(pool_->acquire(3 * kMiB).value());
  EXPECT_EQ(pool_->donate_leased().value(), 1U);
  auto also_kept = pool_->lease(pool_->acquire(2 * kMiB).value());
  const auto too_much = pool_->donate_leased();
  ASSERT_FALSE(too_much.ok());
  EXPECT_EQ(too_much.error().code(), ErrorCode::too_large);
  kept.reset();
  also_kept.reset();
  EXPECT_EQ(idle_calls_, 0);  // they went to their keepers for good
  EXPECT_NE(pool_->acquire(4 * kMiB).value(), nullptr);
}

TEST_F(BlockPoolTest, LeasesOutliveThePoolsOwner) {
  auto arena = pool_->acquire(kMiB).value();
  auto lease = pool_->lease(arena);
  pool_->detach();
  pool_.reset();
  arena->data()[0] = std::byte{1};
  arena.reset();
  lease.reset();
  EXPECT_EQ(idle_calls_, 0);
}

}  // namespace
}  // namespace infercluster::load
