// SPDX-License-Identifier: Apache-2.0
#include "io/engine.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <thread>

#include "base/units.h"
#include "io/engine_test_helpers.h"

namespace infercluster::io {
namespace {

using testing::Fault;

class EngineTest : public EngineFixture {};

TEST_P(EngineTest, DeliversEveryTransferOnceAndQuiescesItLast) {
  Engine& engine = open(4);
  const auto outcome = run_all(engine, whole_file());
  EXPECT_EQ(outcome.delivered, transfers_of_file());
  EXPECT_EQ(engine.active(), 0u);
  EXPECT_TRUE(bytes_are_right());
  EXPECT_EQ(engine.statistics().bytes_read, kFileBytes);
  EXPECT_EQ(engine.statistics().requests, transfers_of_file());
  EXPECT_EQ(engine.statistics().short_reads, 0u);
}

TEST_P(EngineTest, ShortReadsOfAnyKindAreResumed) {
  for (const std::uint32_t most : {1000u, 4096u, 32768u, 65535u}) {
    memory_.clear();
    Engine& engine = open(4, [&](std::uint64_t, const ReadOperation&) { return Fault{.length_most = most}; });
    const auto outcome = run_all(engine, whole_file());
    EXPECT_TRUE(outcome.errors.empty()) << most << ": " << outcome.errors.begin()->second.to_string();
    EXPECT_TRUE(bytes_are_right()) << most;
    EXPECT_GT(engine.statistics().short_reads, 0u);
  }
}

TEST_P(EngineTest, DirectShortReadsAreResumedAlignedDown) {
  source_.set_alignment(4096);
  std::vector<std::uint64_t> unaligned;
  Engine& engine = open(4, [&](std::uint64_t number, const ReadOperation& operation) {
    if (operation.offset % 4096 != 0 || reinterpret_cast<std::uintptr_t>(operation.memory) % 4096 != 0)
      unaligned.push_back(number);
    // Mixed, so that no transfer meets faults without end; a last block is at times read well.
    switch (operation.length > 4096 || number % 3 == 0 ? (number * 2654435761u >> 7) % 4 : 3) {
      case 0:
        return Fault{.length_most = operation.length / 2 + 1};
      case 1:
        return Fault{.length_most = operation.length - 1};
      case 2:
        return Fault{.length_most = 100};  // less than a block
      default:
        return Fault{};
    }
  });
  const auto outcome = run_all(engine, whole_file());
  EXPECT_TRUE(outcome.errors.empty());
  EXPECT_TRUE(bytes_are_right());
  EXPECT_TRUE(unaligned.empty()) << "operation " << unaligned.front();
}

TEST_P(EngineTest, AReadThatEndsWithTheDataIsWhole) {
  Engine& engine = open(4);
  // The last block: the file ends within it.
  const std::uint64_t offset = align_down(kFileBytes, 4096);
  Transfer transfer = transfer_of(offset, 4096, 5);
  transfer.end_of_data = kFileBytes;
  const auto outcome = run_all(engine, {transfer});
  EXPECT_TRUE(outcome.errors.empty());
  EXPECT_EQ(engine.statistics().requests, 1u);
  EXPECT_EQ(testing::first_difference(memory_.span(offset, kFileBytes - offset), offset), kFileBytes - offset);
}

TEST_P(EngineTest, TheEndOfTheFileBeforeTheDataIsAnErrorWithItsOffset) {
  Engine& engine = open(4);
  const std::uint64_t offset = align_down(kFileBytes, 4096);
  Transfer transfer = transfer_of(offset, 4096, 5);
  transfer.end_of_data = kFileBytes + 1;
  const auto outcome = run_all(engine, {transfer});
  ASSERT_EQ(outcome.errors.size(), 1u);
  const Error& error = outcome.errors.at(5);
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_EQ(error.offset(), kFileBytes);
  EXPECT_EQ(error.path(), path_);
  EXPECT_NE(error.message().find("ended at offset " + std::to_string(kFileBytes)), std::string::npos);
}

TEST_P(EngineTest, TheEndOfTheFileWithinADirectBlockIsAnErrorToo) {
  source_.set_alignment(4096);
  Engine& engine = open(4);
  const std::uint64_t offset = align_down(kFileBytes, 4096);
  Transfer transfer = transfer_of(offset, 4096, 5);
  transfer.end_of_data = kFileBytes + 1;
  const auto outcome = run_all(engine, {transfer});
  ASSERT_EQ(outcome.errors.size(), 1u);
  EXPECT_EQ(outcome.errors.at(5).code(), ErrorCode::corrupt);
  EXPECT_EQ(outcome.errors.at(5).offset(), kFileBytes);
}

TEST_P(EngineTest, InterruptedAndRefusedForNowIsTriedAgain) {
  for (const int system_errno : {EINTR, EAGAIN}) {
    memory_.clear();
    Engine& engine = open(4, [&](std::uint64_t number, const ReadOperation&) {
      return Fault{.error = number % 2 == 0 ? -system_errno : 0};
    });
    const auto outcome = run_all(engine, whole_file());
    EXPECT_TRUE(outcome.errors.empty());
    EXPECT_TRUE(bytes_are_right());
    EXPECT_GT(engine.statistics().retries, 0u);
  }
}

TEST_P(EngineTest, RetriesHaveAnEnd) {
  Engine::Options options;
  options.retries_max = 5;
  Engine& engine = open(
      4, [](std::uint64_t, const ReadOperation&) { return Fault{.error = -EAGAIN}; }, options);
  const auto outcome = run_all(engine, {transfer_of(0, 4096, 1)}, milliseconds(50));
  ASSERT_EQ(outcome.errors.size(), 1u);
  EXPECT_EQ(outcome.errors.at(1).system_errno(), EAGAIN);
  EXPECT_EQ(faults_->submitted(), 6u);
}

TEST_P(EngineTest, ARetryWaitsForTheClockWhileOthersGoOn) {
  Engine& engine = open(4, [](std::uint64_t, const ReadOperation& operation) {
    return Fault{.error = operation.offset == 0 ? -EAGAIN : 0};
  });
  ASSERT_TRUE(engine.submit(transfer_of(0, 4096, 1)));
  std::array<Event, 8> events;
  while (faults_->submitted() < 2) static_cast<void>(engine.poll(events, seconds(1)));  // the first retry is immediate
  for (int i = 0; i < 20; ++i) EXPECT_EQ(engine.poll(events, seconds(0)), 0u);  // the second waits: the clock stands
  EXPECT_EQ(faults_->submitted(), 2u);
  ASSERT_TRUE(engine.submit(transfer_of(4096, 4096, 2)));
  std::size_t count = 0;
  while (count < 2) count += engine.poll(std::span(events).subspan(count), seconds(0));
  EXPECT_EQ(events[0].token, 2u);
  faults_->stop_faults();
  clock_.advance(seconds(1));
  count = 0;
  while (count < 2) count += engine.poll(std::span(events).subspan(count), seconds(1));
  EXPECT_EQ(events[0].token, 1u);
  EXPECT_FALSE(events[0].error.has_value());
}

TEST_P(EngineTest, AnErrorOfTheNthRequestFailsThatTransferAlone) {
  const std::size_t count = transfers_of_file();
  for (std::size_t nth = 0; nth < count; nth += 3) {
    Engine& engine =
        open(4, [&](std::uint64_t number, const ReadOperation&) { return Fault{.error = number == nth ? -EIO : 0}; });
    const auto outcome = run_all(engine, whole_file());
    ASSERT_EQ(outcome.errors.size(), 1u);
    const Error& error = outcome.errors.begin()->second;
    EXPECT_EQ(error.system_errno(), EIO);
    EXPECT_EQ(error.path(), path_);
    EXPECT_EQ(error.offset(), outcome.errors.begin()->first * kBlock);
    EXPECT_EQ(outcome.delivered, count);
  }
}

TEST_P(EngineTest, SourcesAreTriedInOrderAndTheFirstErrorIsKept) {
  sources_ = {&source_, &second_, &third_};
  Engine& engine = open(4, [&](std::uint64_t, const ReadOperation& operation) {
    if (operation.fd == source_.fd()) return Fault{.error = -EIO};
    if (operation.fd == second_.fd()) return Fault{.error = -ESTALE};
    return Fault{};
  });
  auto outcome = run_all(engine, whole_file());
  EXPECT_TRUE(outcome.errors.empty());
  EXPECT_TRUE(bytes_are_right());
  EXPECT_EQ(outcome.source_index.at(0), 2u);
  EXPECT_EQ(engine.statistics().source_changes, 2 * transfers_of_file());

  sources_ = {&source_, &second_};
  outcome = run_all(engine, {transfer_of(kBlock, kBlock, 9)});
  EXPECT_EQ(outcome.errors.at(9).system_errno(), EIO);
  EXPECT_EQ(outcome.errors.at(9).path(), source_.name());
}

TEST_P(EngineTest, ASourceThatChangesItsWaysIsAskedAgainButNotForEver) {
  source_.set_retry_on(EINVAL);
  std::set<std::uint64_t> failed;
  Engine& engine = open(4, [&](std::uint64_t, const ReadOperation& operation) {
    return Fault{.error = failed.insert(operation.offset).second ? -EINVAL : 0};
  });
  EXPECT_TRUE(run_all(engine, whole_file()).errors.empty());
  EXPECT_TRUE(bytes_are_right());

  Engine& stubborn = open(4, [](std::uint64_t, const ReadOperation&) { return Fault{.error = -EINVAL}; });
  EXPECT_EQ(run_all(stubborn, {transfer_of(0, kBlock, 1)}).errors.at(1).system_errno(), EINVAL);
}

TEST_P(EngineTest, ForegroundPassesFillAndDrain) {
  std::vector<std::uint64_t> order;
  Engine& engine = open(2, [&](std::uint64_t, const ReadOperation& operation) {
    order.push_back(operation.offset);
    return Fault{.hold = true};
  });
  const auto submit = [&](std::uint64_t block, Priority priority) {
    Transfer transfer = transfer_of(block * 4096, 4096, block);
    transfer.priority = priority;
    return engine.submit(transfer);
  };
  ASSERT_TRUE(submit(0, Priority::drain));
  ASSERT_TRUE(submit(1, Priority::fill));
  EXPECT_FALSE(submit(2, Priority::fill));  // the background may not take what foreground needs
  ASSERT_TRUE(submit(3, Priority::foreground));
  ASSERT_TRUE(submit(4, Priority::foreground));
  EXPECT_FALSE(submit(5, Priority::foreground));
  EXPECT_EQ(order, (std::vector<std::uint64_t>{0, 4096}));
  faults_->release_all();
  const Outcome first = drain(engine, 2);
  EXPECT_EQ(first.delivered, 2u);
  EXPECT_EQ(order, (std::vector<std::uint64_t>{0, 4096, 12288, 16384}));
  faults_->stop_faults();
  faults_->release_all();
  drain(engine, 2);
}

TEST_P(EngineTest, BackgroundThatWaitsIsPassedByForeground) {
  std::vector<std::uint64_t> order;
  Engine& engine = open(2, [&](std::uint64_t, const ReadOperation& operation) {
    order.push_back(operation.offset / 4096);
    return Fault{.hold = true};
  });
  const auto submit = [&](std::uint64_t block, Priority priority) {
    Transfer transfer = transfer_of(block * 4096, 4096, block);
    transfer.priority = priority;
    ASSERT_TRUE(engine.submit(transfer));
  };
  submit(0, Priority::foreground);
  submit(1, Priority::foreground);
  submit(2, Priority::drain);
  submit(3, Priority::fill);
  faults_->release(0);
  drain(engine, 1);  // 3 takes the free place: fill before drain, though drain came first
  submit(4, Priority::foreground);
  faults_->release(0);
  drain(engine, 1);
  EXPECT_EQ(order, (std::vector<std::uint64_t>{0, 1, 3, 4}));
  faults_->stop_faults();
  faults_->release_all();
  drain(engine, 3);
  EXPECT_EQ(order.back(), 4u);
}

TEST_P(EngineTest, CompletionsOutOfOrderArriveAtTheirTransfers) {
  Engine& engine = open(8, [](std::uint64_t, const ReadOperation&) { return Fault{.hold = true}; });
  for (std::uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(engine.submit(transfer_of(i * kBlock, kBlock, i)));
  std::array<Event, 4> events;
  for (const std::size_t position : {7u, 3u, 0u, 4u, 1u, 2u, 0u, 0u}) {
    faults_->release(position);
    std::size_t count = 0;
    while (count < 2) count += engine.poll(std::span(events).subspan(count), seconds(1));
    EXPECT_EQ(events[0].kind, Event::Kind::delivered);
    EXPECT_EQ(events[1].kind, Event::Kind::quiesced);
    const std::uint64_t offset = events[0].token * kBlock;
    EXPECT_EQ(testing::first_difference(memory_.span(offset, kBlock), offset), kBlock);
  }
}

TEST_P(EngineTest, EventsAreKeptUntilTheyAreAskedFor) {
  Engine& engine = open(4);
  for (std::uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(engine.submit(transfer_of(i * kBlock, kBlock, i)));
  std::map<std::uint64_t, int> seen;
  while (engine.active() > 0) {
    std::array<Event, 1> one;
    if (engine.poll(one, seconds(1)) == 1) ++seen[one[0].token];
  }
  EXPECT_EQ(seen.size(), 4u);
  for (const auto& [token, count] : seen) EXPECT_EQ(count, 2) << token;
}

TEST_P(EngineTest, WakeEndsAPoll) {
  Engine& engine = open(4);
  std::array<Event, 1> events;
  std::thread other([&] { engine.wake(); });
  EXPECT_EQ(engine.poll(events, std::chrono::hours(1)), 0u);
  other.join();
}

TEST_P(EngineTest, CancelAtEveryMoment) {
  const std::vector<Transfer> all = whole_file();
  for (std::size_t events_before = 0; events_before <= 2 * all.size(); ++events_before) {
    Engine& engine = open(3);
    const Outcome outcome = run_all(engine, all, seconds(0), events_before);
    EXPECT_EQ(outcome.delivered, outcome.submitted) << events_before;
    EXPECT_EQ(outcome.quiesced, outcome.submitted) << events_before;
    EXPECT_EQ(engine.statistics().quarantined_bytes, 0u);
    for (const auto& [token, error] : outcome.errors) EXPECT_EQ(error.code(), ErrorCode::cancelled);
  }
}

TEST_P(EngineTest, CancelDeliversAtOnceAndQuiescesWhenTheReadIsOver) {
  Engine& engine = open(2, [](std::uint64_t, const ReadOperation&) { return Fault{.hold = true}; });
  for (std::uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(engine.submit(transfer_of(i * kBlock, kBlock, i)));
  engine.cancel();
  EXPECT_EQ(engine.statistics().quarantined_bytes, 2 * kBlock);
  std::array<Event, 16> events;
  // Two had started, and are delivered only; the others are over.
  EXPECT_EQ(engine.poll(events, seconds(0)), 6u);
  EXPECT_EQ(engine.active(), 2u);
  EXPECT_EQ(engine.poll(events, seconds(0)), 0u);
  faults_->release_all();
  EXPECT_EQ(drain(engine, 2).quiesced, 2u);
  EXPECT_EQ(engine.statistics().quarantined_bytes, 0u);
  faults_->stop_faults();
  EXPECT_TRUE(run_all(engine, whole_file()).errors.empty());  // it is as good as new
}

TEST_P(EngineTest, DestructionWaitsForWhatIsInFlight) {
  for (int round = 0; round < 10; ++round) {
    memory_.clear();
    Engine& engine = open(8);
    for (std::uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(engine.submit(transfer_of(i * kBlock, kBlock, i)));
    close();
    // Whatever was read is right, and nothing is written after this.
    const std::vector<std::byte> before(memory_.data(), memory_.data() + 8 * kBlock);
    EXPECT_EQ(std::memcmp(before.data(), memory_.data(), before.size()), 0);
    for (std::uint64_t i = 0; i < 8 * kBlock; ++i) {
      ASSERT_TRUE(before[i] == testing::pattern_byte(i) || before[i] == std::byte{0xEE});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Both, EngineTest, ::testing::Values(BackendChoice::uring, BackendChoice::threads),
                         backend_name);

}  // namespace
}  // namespace infercluster::io
