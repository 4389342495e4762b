// SPDX-License-Identifier: Apache-2.0
// Streams that are cut, crumbled, held back or swallowed.
#include <future>
#include <latch>

#include "initiator/fault_test_helpers.h"

namespace infercluster::initiator {
namespace {

using testing::Direction;
using testing::PduFate;
using testing::PduUnderWay;

struct Seen {
  unsigned connection = 0;  // of the association: 0 is the admin queue's
  Direction direction = Direction::to_target;
  unsigned index = 0;
  std::size_t bytes = 0;
};

class CutTest : public FaultTest {
 protected:
  // Every PDU of connecting and of one read.
  std::vector<Seen> pdus_of_an_association() {
    std::mutex mutex;
    std::vector<Seen> seen;
    proxy_->plan([&](PduUnderWay& pdu) {
      const std::lock_guard lock(mutex);
      seen.push_back({pdu.connection, pdu.direction, pdu.index, pdu.bytes.size()});
      return PduFate{};
    });
    connect();
    expect_reads_right();
    proxy_->plan(nullptr);  // the goodbye is not of it
    host_.reset();
    proxy_->cut_all();
    return seen;
  }
};

TEST_F(CutTest, AtEveryBoundaryAndWithinEveryPduItIsMadeGoodOnAFreshConnection) {
  options_.digests = {.header = true, .data = true};
  std::vector<Seen> pdus = pdus_of_an_association();
  ASSERT_GT(pdus.size(), 25U);
  connect();
  for (const Seen& at : pdus) {
    for (const std::size_t place :
         {std::size_t{0}, std::size_t{1}, std::size_t{8}, at.bytes / 2, at.bytes - 1, at.bytes}) {
      const unsigned first = proxy_->connections();
      auto cut = std::make_shared<std::atomic<bool>>(false);
      proxy_->plan([&at, place, first, cut](PduUnderWay& pdu) {
        const bool here =
            pdu.connection == first + at.connection && pdu.direction == at.direction && pdu.index == at.index;
        if (!here || cut->exchange(true)) return PduFate{};
        return PduFate{.forwarded = place, .then = PduFate::Then::cut};
      });
      proxy_->cut_all();
      expect_reads_right();
      EXPECT_TRUE(cut->load()) << at.connection << " " << static_cast<int>(at.direction) << " " << at.index;
    }
  }
  EXPECT_EQ(host_->counters().deadline_misses.value(), 0);
}

TEST_F(CutTest, PiecesOfOneToThreeBytesMakeNoDifference) {
  proxy_ =
      std::make_unique<testing::NvmeProxy>(target_->address(), nullptr, testing::NvmeProxy::Options{.piece_max = 3});
  for (const nvme::Digests digests : {nvme::Digests{}, nvme::Digests{.header = true, .data = true}}) {
    options_.digests = digests;
    connect();
    expect_reads_right(4, 8);
    EXPECT_EQ(host_->counters().connections_lost.value(), 0);
  }
}

TEST_F(CutTest, WhatIsHeldBackForAWhileIsWaitedFor) {
  connect();
  std::latch held(1);
  std::latch release(1);
  auto once = std::make_shared<std::atomic<bool>>(false);
  proxy_->plan([&, once](PduUnderWay& pdu) {
    if (pdu.direction == Direction::to_host && pdu.type() == kTargetDataType && !once->exchange(true)) {
      held.count_down();
      release.wait();
    }
    return PduFate{};
  });
  Reads reads;
  start(reads, 3, 16);
  held.wait();
  EXPECT_EQ(reads.under_way(), 3U);
  release.count_down();
  expect_all_right(reads);
  EXPECT_EQ(host_->counters().connections_lost.value(), 0);
}

TEST_F(CutTest, ASilentConnectionIsGivenUpAndItsReadsGoToAFreshOne) {
  options_.silence_max = std::chrono::milliseconds(100);
  for (const bool whole : {true, false}) {
    connect();
    auto once = std::make_shared<std::atomic<bool>>(false);
    proxy_->plan([once, whole](PduUnderWay& pdu) {
      if (pdu.direction != Direction::to_host || pdu.type() != kTargetDataType || once->exchange(true))
        return PduFate{};
      return PduFate{.forwarded = whole ? SIZE_MAX : pdu.bytes.size() / 2, .then = PduFate::Then::swallow};
    });
    expect_reads_right(8, 32);
    EXPECT_GE(host_->counters().retries.value(), 1);
    EXPECT_GE(host_->counters().reconnects.value(), 1);
    EXPECT_EQ(host_->counters().deadline_misses.value(), 0);
  }
}

TEST_F(CutTest, ADeadAdminQueueIsFoundByItsKeepAliveAlone) {
  options_.keep_alive = std::chrono::milliseconds(50);
  options_.silence_max = std::chrono::milliseconds(50);
  connect();
  std::promise<void> again;
  auto first = std::make_shared<std::atomic<bool>>(true);
  const unsigned made = proxy_->connections();
  proxy_->plan([&again, first, made](PduUnderWay& pdu) {
    if (pdu.connection < made) return PduFate{.forwarded = 0, .then = PduFate::Then::swallow};
    if (first->exchange(false)) again.set_value();
    return PduFate{};
  });
  ASSERT_EQ(again.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  expect_reads_right();
}

TEST_F(CutTest, AReadIsNotTriedBeyondItsDeadline) {
  options_.read_deadline = std::chrono::milliseconds(1500);
  options_.backoff.most = std::chrono::milliseconds(5);
  connect();
  proxy_->plan([](PduUnderWay& pdu) {
    if (pdu.direction != Direction::to_host || pdu.type() != kTargetDataType || pdu.bytes.size() < 60'000)
      return PduFate{};
    return PduFate{.forwarded = 100, .then = PduFate::Then::cut};
  });
  Reads reads;
  start(reads, 40, 16);
  ASSERT_TRUE(reads.wait_for_all());
  for (const auto& read : reads.all()) {
    ASSERT_FALSE(read->status->ok());
    EXPECT_EQ(read->status->error().code(), ErrorCode::timed_out);
    EXPECT_NE(read->status->error().message().find("within 1500 ms; its connection was lost"), std::string::npos)
        << read->status->error().to_string();
  }
  EXPECT_EQ(host_->counters().deadline_misses.value(), 40);
  EXPECT_GE(host_->counters().connections_lost.value(), 2);
  proxy_->plan(nullptr);
  Reads after;
  after.start(*host_, mapping_.first_block, 1, std::chrono::seconds(30));
  expect_all_right(after);
}

// It waits for no deadline and no target.
TEST_F(CutTest, AHostThatIsBeingConnectedAnewCanBeDestroyed) {
  options_.connect_timeout = std::chrono::hours(1);
  connect();
  std::promise<void> connecting;
  auto first = std::make_shared<std::atomic<bool>>(true);
  proxy_->plan([&connecting, first](PduUnderWay&) {
    if (first->exchange(false)) connecting.set_value();
    return PduFate{.forwarded = 0, .then = PduFate::Then::swallow};
  });
  proxy_->cut_all();
  connecting.get_future().wait();
  Reads reads;
  start(reads, 3, 1);
  host_.reset();
  EXPECT_EQ(reads.under_way(), 0U);
  for (const auto& read : reads.all()) EXPECT_EQ(read->status->error().code(), ErrorCode::cancelled);
}

TEST_F(CutTest, ReadsMayBeStartedFromTheEndOfOthersAndByManyThreads) {
  options_.queues = 2;
  options_.queue_entries = 4;
  connect();
  constexpr unsigned kChains = 24;
  constexpr unsigned kLinks = 40;
  std::latch done(kChains);
  std::vector<std::byte> memory(std::size_t{kChains} * target::kBlockBytes);
  std::atomic<unsigned> wrong{0};
  std::function<void(unsigned, unsigned)> link = [&](unsigned chain, unsigned left) {
    const std::uint64_t block = (chain * 37U + left * 11U) % 1000U;
    const auto part = std::span(memory).subspan(std::size_t{chain} * target::kBlockBytes, target::kBlockBytes);
    const Status started = host_->start({.first_block = mapping_.first_block + block,
                                         .blocks = 1,
                                         .memory = part,
                                         .done = [&, chain, left, block, part](const Status& status) {
                                           const bool same =
                                               std::equal(part.begin(), part.end(),
                                                          std::as_bytes(std::span(content_)).begin() +
                                                              static_cast<std::ptrdiff_t>(block * target::kBlockBytes));
                                           if (!status.ok() || !same) ++wrong;
                                           if (left == 0) {
                                             done.count_down();
                                           } else {
                                             link(chain, left - 1);
                                           }
                                         }});
    if (!started.ok()) ++wrong;
  };
  std::vector<std::thread> threads;
  for (unsigned chain = 0; chain < kChains; ++chain) threads.emplace_back([&, chain] { link(chain, kLinks - 1); });
  for (unsigned i = 0; i < 5; ++i) proxy_->cut_all();
  for (std::thread& thread : threads) thread.join();
  done.wait();
  EXPECT_EQ(wrong.load(), 0U);
}

}  // namespace
}  // namespace infercluster::initiator
