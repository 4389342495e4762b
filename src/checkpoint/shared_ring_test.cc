// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/shared_ring.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "os/shared_memory.h"

namespace infercluster::checkpoint {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kSlotBytes = 4096;

TEST(SharedRing, ABufferIsFilledAgainOnlyWhenAllHaveTakenIt) {
  auto memory = os::SharedMemory::create(SharedRing::bytes(2, kSlotBytes));
  const SharedRing ring(memory->data(), 2, kSlotBytes);
  EXPECT_TRUE(ring.may_fill(0) && ring.may_fill(1));
  EXPECT_FALSE(ring.may_fill(2));
  EXPECT_FALSE(ring.is_filled(0));
  ring.publish(0, 2);
  EXPECT_TRUE(ring.is_filled(0));
  EXPECT_FALSE(ring.may_fill(0));
  ring.release(0);
  EXPECT_FALSE(ring.may_fill(2));
  ring.release(0);
  EXPECT_TRUE(ring.may_fill(2));
  EXPECT_FALSE(ring.is_filled(0) || ring.is_filled(2));
  EXPECT_EQ(ring.buffer(0), ring.buffer(2));
  EXPECT_EQ(ring.buffer(1), ring.buffer(0) + kSlotBytes);
  EXPECT_EQ(ring.buffer(1) + kSlotBytes, memory->data().data() + memory->data().size());
}

// Each of three fills every third number, and takes all of the others', through mappings of their own.
TEST(SharedRing, WhatRanksPassOnIsWhatTheyGot) {
  constexpr std::uint64_t kSlots = 4;
  constexpr std::uint64_t kNumbers = 600;
  constexpr std::uint64_t kRanks = 3;
  auto memory = os::SharedMemory::create(SharedRing::bytes(kSlots, kSlotBytes));
  std::vector<std::thread> ranks;
  std::vector<std::uint64_t> wrong(kRanks);
  for (std::uint64_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      auto mapping = os::SharedMemory::map(Fd(::dup(memory->fd())), memory->data().size());
      const SharedRing ring(mapping->data(), kSlots, kSlotBytes);
      for (std::uint64_t number = 0; number < kNumbers; ++number) {
        const bool mine = number % kRanks == rank;
        while (!(mine ? ring.may_fill(number) : ring.is_filled(number))) {
          const std::uint32_t seen = ring.changes();
          if (!(mine ? ring.may_fill(number) : ring.is_filled(number))) ring.wait(seen, 10s);
        }
        if (mine) {
          std::memset(ring.buffer(number), static_cast<int>(number % 251), kSlotBytes);
          ring.publish(number, kRanks - 1);
          continue;
        }
        for (std::uint64_t i = 0; i < kSlotBytes; ++i)
          wrong[rank] += ring.buffer(number)[i] == static_cast<std::byte>(number % 251) ? 0U : 1U;
        ring.release(number);
      }
      ring.finish();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(wrong, std::vector<std::uint64_t>(kRanks));
  const SharedRing ring(memory->data(), kSlots, kSlotBytes);
  EXPECT_EQ(ring.finished(), kRanks);
}

TEST(SharedRing, WaitingEndsWithItsTime) {
  auto memory = os::SharedMemory::create(SharedRing::bytes(1, kSlotBytes));
  const SharedRing ring(memory->data(), 1, kSlotBytes);
  ring.wait(ring.changes(), 1ms);
  ring.wait(ring.changes() + 1, 1h);  // it has changed since
}

}  // namespace
}  // namespace infercluster::checkpoint
