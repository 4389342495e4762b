// SPDX-License-Identifier: Apache-2.0
#include "memory/prefault.h"

#include <gtest/gtest.h>

#include <semaphore>

namespace infercluster::memory {
namespace {

TEST(Prefaulter, PopulatesWhatWasAddedAndTellsEachStep) {
  std::counting_semaphore<> told(0);
  Prefaulter prefaulter(2, [&] { told.release(); });
  auto first = Arena::allocate(3 * kPopulateStep).value();
  auto second = Arena::allocate(kPopulateStep + 5).value();
  prefaulter.add(first, 2 * kPopulateStep);
  prefaulter.add(second, second->bytes());
  for (int i = 0; i < 4; ++i) told.acquire();
  EXPECT_TRUE(first->is_populated(0, 2 * kPopulateStep));
  EXPECT_FALSE(first->is_populated(2 * kPopulateStep, 1));
  EXPECT_TRUE(second->is_populated(0, second->bytes()));
  EXPECT_FALSE(prefaulter.error());
}

TEST(Prefaulter, StopEndsItAtAnyMoment) {
  for (int round = 0; round < 20; ++round) {
    std::counting_semaphore<> told(0);
    Prefaulter prefaulter(2, [&] { told.release(); });
    auto arena = Arena::allocate(16 * kPopulateStep).value();
    prefaulter.add(arena, arena->bytes());
    for (int i = 0; i < round % 5; ++i) told.acquire();
    prefaulter.stop();
    prefaulter.add(arena, arena->bytes());  // nothing happens after stop
    EXPECT_EQ(arena.use_count(), 1);
  }
}

}  // namespace
}  // namespace infercluster::memory
