// SPDX-License-Identifier: Apache-2.0
// Which source is asked, which attempt wins, what becomes of the losers, and when a transfer is quiescent.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "io/engine_impl.h"

namespace infercluster::io {
namespace {

using State = AttemptRecord::State;

}  // namespace

// Asks the next source. The caller has made sure that there is one, and a free attempt.
void Engine::Impl::begin_attempt(std::uint32_t transfer, bool beside_another) {
  TransferRecord& record = transfers[transfer];
  IC_ASSERT(!free_attempts.empty() && record.next_source < record.transfer.sources->size());
  const std::uint32_t index = free_attempts.back();
  free_attempts.pop_back();
  AttemptRecord& attempt = attempts[index];
  const std::uint32_t generation = attempt.generation + 1;
  attempt = AttemptRecord{};
  attempt.generation = generation;
  attempt.priority = record.transfer.priority;
  attempt.hedge = beside_another;
  attempt.hedged = record.hedged;
  attempt.transfer = transfer;
  attempt.source_index = record.next_source++;
  attempt.source = (*record.transfer.sources)[attempt.source_index];
  attempt.offset = record.transfer.offset;
  attempt.length = record.transfer.length;
  attempt.end_of_data = record.transfer.end_of_data;
  std::uint32_t& lane = record.lanes[0] == kNone ? record.lanes[0] : record.lanes[1];
  IC_ASSERT(lane == kNone);
  lane = index;
  record.asked = clock.now();
  link_ready(index, attempt.source_index > 0);  // a transfer that was late once goes first
}

// Takes a finished attempt out of its transfer.
void Engine::Impl::free_attempt(std::uint32_t index) {
  AttemptRecord& attempt = attempts[index];
  IC_ASSERT(attempt.state != State::free);
  if (attempt.transfer != kNone) {
    for (std::uint32_t& lane : transfers[attempt.transfer].lanes) {
      if (lane == index) lane = kNone;
    }
  }
  if (attempt.own_buffer) buffers.give_back(attempt.memory, attempt.length, attempt.share());
  statistics.quarantined_bytes -= attempt.quarantined;
  attempt.state = State::free;
  attempt.transfer = kNone;
  attempt.memory = nullptr;
  attempt.own_buffer = false;
  attempt.quarantined = 0;
  free_attempts.push_back(index);
}

void Engine::Impl::attempt_failed(std::uint32_t index, Error error) {
  const std::uint32_t transfer = attempts[index].transfer;
  const std::uint32_t source_index = attempts[index].source_index;
  TransferRecord& record = transfers[transfer];
  free_attempt(index);
  if (!record.error || source_index < record.error_source) {
    record.error = std::move(error);
    record.error_source = source_index;
  }
  const bool another_runs = record.lanes[0] != kNone || record.lanes[1] != kNone;
  if (another_runs) return;  // a next source is asked when that one fails, or is late too
  if (record.next_source < record.transfer.sources->size()) {
    ++statistics.source_changes;
    begin_attempt(transfer, false);
    return;
  }
  record.source_index = record.error_source;
  finish_delivery(transfer);
}

// `index` has read all that was wanted.
void Engine::Impl::deliver_bytes(std::uint32_t index) {
  AttemptRecord& winner = attempts[index];
  const std::uint32_t transfer = winner.transfer;
  TransferRecord& record = transfers[transfer];
  record.error.reset();
  record.source_index = winner.source_index;
  statistics.hedges_won += winner.hedge ? 1 : 0;
  for (const std::uint32_t lane : std::array(record.lanes)) {
    if (lane != kNone && lane != index)
      leave(lane);  // before the copy: a loser that can be aborted may write to the same memory
  }
  if (winner.own_buffer) {
    const std::size_t bytes = record.transfer.end_of_data - record.transfer.offset;
    std::memcpy(record.transfer.memory, winner.memory, bytes);
    statistics.moved_bytes += bytes;
  }
  free_attempt(index);
  finish_delivery(transfer);
}

void Engine::Impl::deliver_error(std::uint32_t transfer, Error error) {
  TransferRecord& record = transfers[transfer];
  record.error = std::move(error);
  for (const std::uint32_t lane : std::array(record.lanes)) {
    if (lane != kNone) leave(lane);
  }
  finish_delivery(transfer);
}

void Engine::Impl::finish_delivery(std::uint32_t transfer) {
  TransferRecord& record = transfers[transfer];
  IC_ASSERT(!record.delivered);
  record.delivered = true;
  record.latency = clock.now() - record.submitted;
  hedgeable -= record.hedged ? 1 : 0;
  push_event(Event::Kind::delivered, transfer);
  quiesce_if_idle(transfer);
}

void Engine::Impl::quiesce_if_idle(std::uint32_t transfer) {
  const TransferRecord& record = transfers[transfer];
  if (record.delivered && record.lanes[0] == kNone && record.lanes[1] == kNone) {
    push_event(Event::Kind::quiesced, transfer);
  }
}

// Nobody waits for this attempt any more. One that has not started, or reads into a buffer of the engine's, is no
// longer the transfer's concern; one that reads into the transfer's memory keeps it from being quiescent.
void Engine::Impl::leave(std::uint32_t index) {
  AttemptRecord& attempt = attempts[index];
  if (!attempt.running()) {
    if (attempt.state == State::ready) unlink_ready(index);
    if (attempt.state == State::backing_off) --backing_off;
    free_attempt(index);
    return;
  }
  const bool abort = attempt.state == State::in_source && attempt.source->abortable();
  if (!abort) {
    attempt.quarantined = attempt.length - attempt.progress;
    statistics.quarantined_bytes += attempt.quarantined;
  }
  if (attempt.own_buffer) {
    for (std::uint32_t& lane : transfers[attempt.transfer].lanes) {
      if (lane == index) lane = kNone;
    }
    attempt.transfer = kNone;
  }
  if (abort) attempt.source->abort(token_of(index));
}

void Engine::Impl::start_due_hedges(Clock::TimePoint now) {
  for (std::uint32_t i = 0; i < transfers.size() && !free_attempts.empty(); ++i) {
    const TransferRecord& record = transfers[i];
    if (!record.used || record.delivered || !record.hedged) continue;
    if (record.next_source >= record.transfer.sources->size()) continue;
    const bool alone = (record.lanes[0] == kNone) != (record.lanes[1] == kNone);
    if (!alone || now < record.asked + *record.transfer.hedge_after) continue;
    ++statistics.hedges;
    begin_attempt(i, true);
  }
}

void Engine::Impl::cancel() {
  for (std::uint32_t i = 0; i < transfers.size(); ++i) {
    if (!transfers[i].used || transfers[i].delivered) continue;
    deliver_error(i, Error(ErrorCode::cancelled, "the transfer was cancelled"));
  }
}

}  // namespace infercluster::io
