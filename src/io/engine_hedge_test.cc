// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <thread>

#include "base/thread.h"
#include "io/engine_test_helpers.h"
#include "testing/scripted_source.h"

namespace infercluster::io {
namespace {

using testing::Fault;
using testing::ScriptedSource;

constexpr auto kDeadline = milliseconds(50);

std::vector<std::byte> pattern_bytes(std::size_t length) {
  std::vector<std::byte> bytes(length);
  for (std::size_t i = 0; i < length; ++i) bytes[i] = testing::pattern_byte(i);
  return bytes;
}

class HedgeTest : public EngineFixture {
 protected:
  static std::unique_ptr<ScriptedSource> scripted(const std::string& name, bool abortable) {
    return std::make_unique<ScriptedSource>(name, pattern_bytes(kFileBytes), ScriptedSource::Options{abortable});
  }
  static std::unique_ptr<ScriptedSource> lying(const std::string& name, bool abortable) {
    return std::make_unique<ScriptedSource>(name, std::vector<std::byte>(kFileBytes, std::byte{0x55}),
                                            ScriptedSource::Options{abortable});
  }
  Transfer hedged(std::uint64_t offset, std::uint64_t token) {
    Transfer transfer = transfer_of(offset, kBlock, token);
    transfer.hedge_after = kDeadline;
    return transfer;
  }
  bool in_transfer_memory(const Attempt& attempt) {
    return attempt.memory >= memory_.data() && attempt.memory < memory_.data() + 21 * kBlock;
  }
  bool block_is_right(std::uint64_t offset) {
    return testing::first_difference(memory_.span(offset, kBlock), offset) == kBlock;
  }
  // What poll() gives without waiting.
  static std::vector<Event> poll_now(Engine& engine) {
    std::array<Event, 64> events;
    const std::size_t count = engine.poll(events, seconds(0));
    return {std::make_move_iterator(events.begin()),
            std::make_move_iterator(events.begin() + static_cast<std::ptrdiff_t>(count))};
  }
};

TEST_P(HedgeTest, TheNextSourceIsAskedAtTheDeadlineAndItsBytesAreCopied) {
  const auto slow = lying("slow", false);
  const auto fast = scripted("fast", false);
  sources_ = {slow.get(), fast.get()};
  Engine& engine = open(8);
  ASSERT_TRUE(engine.submit(hedged(0, 1)));
  clock_.advance(kDeadline - std::chrono::nanoseconds(1));
  EXPECT_TRUE(poll_now(engine).empty());
  EXPECT_EQ(fast->pending(), 0u);
  clock_.advance(std::chrono::nanoseconds(1));
  EXPECT_TRUE(poll_now(engine).empty());
  ASSERT_EQ(fast->pending(), 1u);
  EXPECT_FALSE(in_transfer_memory(slow->attempt(0)));
  EXPECT_FALSE(in_transfer_memory(fast->attempt(0)));

  fast->complete(0);
  const auto events = poll_now(engine);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, Event::Kind::delivered);
  EXPECT_EQ(events[0].source_index, 1u);
  EXPECT_EQ(events[0].latency, kDeadline);
  EXPECT_EQ(events[1].kind, Event::Kind::quiesced);
  EXPECT_TRUE(block_is_right(0));
  EXPECT_EQ(engine.active(), 0u);
  EXPECT_EQ(engine.statistics().hedges, 1u);
  EXPECT_EQ(engine.statistics().hedges_won, 1u);
  EXPECT_EQ(engine.statistics().moved_bytes, kBlock);
  EXPECT_EQ(engine.statistics().quarantined_bytes, kBlock);

  slow->complete(0);  // too late, and wrong
  EXPECT_TRUE(poll_now(engine).empty());
  EXPECT_TRUE(block_is_right(0));
  EXPECT_EQ(engine.statistics().quarantined_bytes, 0u);
}

TEST_P(HedgeTest, TheFirstSourceMayStillWin) {
  const auto first = scripted("first", false);
  const auto hedge = lying("hedge", false);
  sources_ = {first.get(), hedge.get()};
  Engine& engine = open(8);
  ASSERT_TRUE(engine.submit(hedged(kBlock, 1)));
  clock_.advance(kDeadline);
  poll_now(engine);
  ASSERT_EQ(hedge->pending(), 1u);
  first->complete(0);
  const auto events = poll_now(engine);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].source_index, 0u);
  EXPECT_EQ(engine.statistics().hedges_won, 0u);
  hedge->complete(0);
  EXPECT_TRUE(poll_now(engine).empty());
  EXPECT_TRUE(block_is_right(kBlock));
}

TEST_P(HedgeTest, OnlyAnAbortableSourceWritesToTheTransfersMemoryAndIsAbortedBeforeDelivery) {
  const auto socket = lying("socket", true);
  const auto disk = scripted("disk", false);
  sources_ = {socket.get(), disk.get()};
  Engine& engine = open(8);
  ASSERT_TRUE(engine.submit(hedged(0, 1)));
  EXPECT_TRUE(in_transfer_memory(socket->attempt(0)));
  socket->complete(0, 1000);  // a short read: wrong bytes are in the memory already
  clock_.advance(kDeadline);
  poll_now(engine);
  ASSERT_EQ(disk->pending(), 1u);
  EXPECT_FALSE(in_transfer_memory(disk->attempt(0)));
  disk->complete(0);
  auto events = poll_now(engine);
  EXPECT_EQ(socket->aborted(), 1u);
  ASSERT_EQ(events.size(), 1u);  // delivered; the abort's completion is taken by the next poll
  EXPECT_TRUE(block_is_right(0));
  EXPECT_EQ(engine.statistics().quarantined_bytes, 0u);
  events = poll_now(engine);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, Event::Kind::quiesced);
}

TEST_P(HedgeTest, TwoAbortableSourcesNeverShareTheMemory) {
  const auto one = scripted("one", true);
  const auto two = scripted("two", true);
  sources_ = {one.get(), two.get()};
  Engine& engine = open(8);
  ASSERT_TRUE(engine.submit(hedged(0, 1)));
  clock_.advance(kDeadline);
  poll_now(engine);
  EXPECT_TRUE(in_transfer_memory(one->attempt(0)));
  EXPECT_FALSE(in_transfer_memory(two->attempt(0)));
  one->complete(0);
  EXPECT_EQ(poll_now(engine).size(), 2u);
  EXPECT_EQ(two->aborted(), 1u);
  EXPECT_EQ(engine.statistics().moved_bytes, 0u);
  EXPECT_TRUE(block_is_right(0));
}

TEST_P(HedgeTest, WithOneSourceThereIsNoHedgeAndNoCopy) {
  const auto only = scripted("only", false);
  sources_ = {only.get()};
  Engine& engine = open(8);
  ASSERT_TRUE(engine.submit(hedged(0, 1)));
  EXPECT_TRUE(in_transfer_memory(only->attempt(0)));
  clock_.advance(seconds(100));
  poll_now(engine);
  only->complete(0);
  EXPECT_EQ(poll_now(engine).size(), 2u);
  EXPECT_EQ(engine.statistics().hedges, 0u);
  EXPECT_EQ(engine.statistics().moved_bytes, 0u);
}

TEST_P(HedgeTest, FailureOfOneLaneWaitsForTheOtherAndThenTriesTheRest) {
  const auto a = scripted("a", false);
  const auto b = scripted("b", false);
  const auto c = scripted("c", false);
  sources_ = {a.get(), b.get(), c.get()};
  Engine& engine = open(8);
  ASSERT_TRUE(engine.submit(hedged(0, 1)));
  clock_.advance(kDeadline);
  poll_now(engine);
  b->fail(0, EIO);
  EXPECT_TRUE(poll_now(engine).empty());
  EXPECT_EQ(c->pending(), 0u);
  clock_.advance(kDeadline);  // the first is late once more: the third is asked beside it
  poll_now(engine);
  ASSERT_EQ(c->pending(), 1u);
  EXPECT_EQ(engine.statistics().hedges, 2u);
  a->fail(0, ENXIO);
  EXPECT_TRUE(poll_now(engine).empty());
  c->fail(0, ENODEV);
  const auto events = poll_now(engine);
  ASSERT_EQ(events.size(), 2u);
  ASSERT_TRUE(events[0].error.has_value());
  EXPECT_EQ(events[0].error->path(), "a");  // the first source's, though another failed before it
  EXPECT_EQ(events[0].error->system_errno(), ENXIO);
}

TEST_P(HedgeTest, AFailureBeforeTheDeadlineAsksTheNextSourceAtOnce) {
  const auto a = scripted("a", false);
  const auto b = scripted("b", false);
  sources_ = {a.get(), b.get()};
  Engine& engine = open(8);
  ASSERT_TRUE(engine.submit(hedged(0, 1)));
  a->fail(0, EIO);
  poll_now(engine);
  ASSERT_EQ(b->pending(), 1u);
  EXPECT_EQ(engine.statistics().hedges, 0u);
  EXPECT_EQ(engine.statistics().source_changes, 1u);
  b->complete(0);
  const auto events = poll_now(engine);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_FALSE(events[0].error.has_value());
  EXPECT_TRUE(block_is_right(0));
}

TEST_P(HedgeTest, HungFirstAttemptsLeaveBuffersForHedges) {
  const auto hung = scripted("hung", false);
  const auto good = scripted("good", false);
  sources_ = {hung.get(), good.get()};
  Engine::Options options;
  options.hedge_bytes_max = 4 * kBlock;
  Engine& engine = open(8, nullptr, options);
  for (std::uint64_t i = 0; i < 16; ++i) ASSERT_TRUE(engine.submit(hedged(i * kBlock, i)));
  EXPECT_EQ(hung->pending(), 2u);  // half of the budget; the others wait for theirs
  clock_.advance(kDeadline);
  std::size_t delivered = 0;
  while (delivered < 16) {
    for (const Event& event : poll_now(engine)) {
      if (event.kind == Event::Kind::delivered) ++delivered;
    }
    EXPECT_LE(good->pending(), 2u);
    if (good->pending() > 0) good->complete(0);
  }
  for (std::uint64_t i = 0; i < 16; ++i) EXPECT_TRUE(block_is_right(i * kBlock));
  poll_now(engine);
  EXPECT_EQ(engine.active(), 0u);
  EXPECT_EQ(hung->pending(), 2u);
  EXPECT_EQ(engine.statistics().quarantined_bytes, 2 * kBlock);
  while (hung->pending() > 0) hung->complete(0);
}

TEST_P(HedgeTest, HungReadsLeaveRoomInTheBackendForHedges) {
  sources_ = {&source_, &second_};
  Engine& engine = open(
      4, [&](std::uint64_t, const ReadOperation& operation) { return Fault{.hold = operation.fd == source_.fd()}; });
  for (std::uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(engine.submit(hedged(i * kBlock, i)));
  EXPECT_EQ(faults_->held(), 3u);
  clock_.advance(kDeadline);
  const Outcome outcome = drain(engine, 8);
  EXPECT_TRUE(outcome.errors.empty());
  for (std::uint64_t i = 0; i < 8; ++i) EXPECT_TRUE(block_is_right(i * kBlock));
  EXPECT_EQ(engine.statistics().quarantined_bytes, 3 * kBlock);
  faults_->release_all();
}

TEST_P(HedgeTest, ShortReadsIntoBuffersAreResumed) {
  const auto slow = scripted("slow", false);
  const auto other = scripted("other", false);
  sources_ = {slow.get(), other.get()};
  Engine& engine = open(8);
  ASSERT_TRUE(engine.submit(hedged(2 * kBlock, 1)));
  for (int i = 0; i < 3; ++i) {
    slow->complete(0, 10000);
    poll_now(engine);
    ASSERT_EQ(slow->pending(), 1u);
  }
  EXPECT_EQ(slow->attempt(0).offset, 2 * kBlock + 30000);
  slow->complete(0);
  EXPECT_EQ(poll_now(engine).size(), 2u);
  EXPECT_TRUE(block_is_right(2 * kBlock));
}

TEST_P(HedgeTest, CancelAbortsWhatCanBeAborted) {
  const auto socket = scripted("socket", true);
  sources_ = {socket.get()};
  Engine& engine = open(8);
  for (std::uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(engine.submit(transfer_of(i * kBlock, kBlock, i)));
  engine.cancel();
  EXPECT_EQ(socket->aborted(), 4u);
  EXPECT_EQ(engine.statistics().quarantined_bytes, 0u);
  EXPECT_EQ(drain(engine, 4).errors.size(), 4u);
}

// Sources that answer from threads of their own, in any order, with errors and short reads; hedges, failovers, cancels.
// Whatever happens: each transfer is delivered once and quiesced once, and bytes that were delivered without an error
// are right and stay so.
class Answerer {
 public:
  Answerer(std::vector<ScriptedSource*> sources, unsigned seed) : sources_(std::move(sources)), generator_(seed) {
    thread_ = start_thread("answerer", [this] { run(); });
  }
  ~Answerer() {
    stop_ = true;
    thread_.join();
  }

 private:
  void run() {
    while (!stop_ || any_pending()) {
      for (ScriptedSource* source : sources_) {
        const auto dice = generator_() % 8;
        if (dice == 0) source->try_fail(EIO);
        if (dice == 1) source->try_complete(static_cast<std::uint32_t>(1 + generator_() % 70000));
        if (dice > 4 || stop_) source->try_complete(UINT32_MAX);
      }
      std::this_thread::yield();
    }
  }
  bool any_pending() {
    return std::any_of(sources_.begin(), sources_.end(), [](const auto* source) { return source->pending() > 0; });
  }

  std::vector<ScriptedSource*> sources_;
  std::mt19937 generator_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST_P(HedgeTest, AnyInterleavingDeliversOnceAndQuiescesOnce) {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    const auto a = scripted("a", seed % 2 == 0);
    const auto b = scripted("b", seed % 3 == 0);
    const auto c = scripted("c", seed % 5 == 0);
    sources_ = {a.get(), b.get(), c.get()};
    memory_.clear();
    Engine::Options options;
    options.hedge_bytes_max = 6 * kBlock;
    Engine& engine = open(1 + seed % 8, nullptr, options);
    std::vector<Transfer> all = whole_file();
    for (Transfer& transfer : all) {
      if (transfer.token % 3 != 0) transfer.hedge_after = milliseconds(transfer.token % 2);
    }
    Outcome outcome;
    {
      const Answerer answerer({a.get(), b.get(), c.get()}, seed);
      outcome = run_all(engine, all, milliseconds(1), seed % 4 == 0 ? seed : SIZE_MAX);
      EXPECT_EQ(outcome.delivered, outcome.submitted);
      EXPECT_EQ(outcome.quiesced, outcome.submitted);
      if (seed % 2 == 0) close();  // losers may still be on their way
    }
    for (const Transfer& transfer : all) {
      if (!outcome.source_index.contains(transfer.token) || outcome.errors.contains(transfer.token)) continue;
      const std::size_t length = transfer.end_of_data - transfer.offset;
      EXPECT_EQ(testing::first_difference(memory_.span(transfer.offset, length), transfer.offset), length);
    }
    close();
  }
}

TEST_P(HedgeTest, DestructionWaitsForSourcesOfTheirOwnThread) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const auto a = scripted("a", false);
    sources_ = {a.get()};
    Engine& engine = open(4);
    for (std::uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(engine.submit(transfer_of(i * kBlock, kBlock, i)));
    const Answerer answerer({a.get()}, seed);
    close();
    EXPECT_EQ(a->pending(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Both, HedgeTest, ::testing::Values(BackendChoice::uring, BackendChoice::threads),
                         backend_name);

}  // namespace
}  // namespace infercluster::io
