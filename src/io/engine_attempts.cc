// SPDX-License-Identifier: Apache-2.0
// One attempt: from the ready list into the backend or its source, and what its results mean.
#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/units.h"
#include "io/engine_impl.h"

namespace infercluster::io {
namespace {

using State = AttemptRecord::State;

// A source changes its ways once; operations that were under way then fail the old way once more. More than that is an
// error that repeats.
constexpr unsigned kSourceRetriesMax = 3;
// Direct reads that end within a block are tried again from the block's start. The same end again and again is the end
// of the file.
constexpr unsigned kStallsMax = 10;
constexpr std::chrono::microseconds kBackOffFirst{20};
constexpr std::chrono::milliseconds kBackOffMost{10};

Error truncated(const AttemptRecord& attempt, std::uint64_t ended_at) {
  return Error(ErrorCode::corrupt, "the file ended at offset " + std::to_string(ended_at) + ", expected " +
                                       std::to_string(attempt.end_of_data - ended_at) + " more bytes up to offset " +
                                       std::to_string(attempt.end_of_data))
      .with_path(attempt.source->name())
      .with_offset(ended_at)
      .with_hint("The file was cut short, before the load or under it: fetch it again");
}

}  // namespace

void Engine::Impl::link_ready(std::uint32_t index, bool in_front) {
  AttemptRecord& attempt = attempts[index];
  ReadyList& list = ready[static_cast<std::size_t>(attempt.priority)];
  attempt.state = State::ready;
  attempt.previous = in_front ? kNone : list.last;
  attempt.next = in_front ? list.first : kNone;
  (attempt.previous == kNone ? list.first : attempts[attempt.previous].next) = index;
  (attempt.next == kNone ? list.last : attempts[attempt.next].previous) = index;
}

void Engine::Impl::unlink_ready(std::uint32_t index) {
  AttemptRecord& attempt = attempts[index];
  ReadyList& list = ready[static_cast<std::size_t>(attempt.priority)];
  (attempt.previous == kNone ? list.first : attempts[attempt.previous].next) = attempt.next;
  (attempt.next == kNone ? list.last : attempts[attempt.next].previous) = attempt.previous;
}

// Starts what can start, foreground first. An attempt that waits for a buffer, or for the backend, lets others pass
// that need neither.
void Engine::Impl::pump() {
  for (const ReadyList& list : ready) {
    for (std::uint32_t index = list.first; index != kNone;) {
      const std::uint32_t next = attempts[index].next;
      if (issue(index)) unlink_ready(index);
      index = next;
    }
  }
}

// First attempts of transfers that may be hedged leave a quarter of the backend free: should they all hang, the hedges
// still find room.
bool Engine::Impl::may_enter_backend(const AttemptRecord& attempt) const {
  const unsigned capacity = backend->capacity();
  if (backend->in_flight() >= capacity) return false;
  if (!attempt.hedged || attempt.hedge || capacity == 1) return true;
  return hedged_first_in_backend < capacity - std::max(1u, capacity / 4);
}

// A hedged transfer's memory is written by one attempt alone, and only by one that can be aborted: its bytes must not
// change after the delivery.
bool Engine::Impl::choose_memory(AttemptRecord& attempt) {
  const TransferRecord& record = transfers[attempt.transfer];
  std::byte* const wanted = record.transfer.memory;
  bool taken = false;
  for (const std::uint32_t lane : record.lanes) taken = taken || (lane != kNone && attempts[lane].memory == wanted);
  if (!taken && (!record.hedged || attempt.source->abortable())) {
    attempt.memory = wanted;
    return true;
  }
  attempt.memory = buffers.take(attempt.length, attempt.share());
  attempt.own_buffer = attempt.memory != nullptr;
  return attempt.own_buffer;
}

std::uint64_t Engine::Impl::token_of(std::uint32_t index) const {
  return (std::uint64_t{attempts[index].generation} << 32) | index;
}

// False: not now.
bool Engine::Impl::issue(std::uint32_t index) {
  AttemptRecord& attempt = attempts[index];
  if (attempt.needs_backend && !may_enter_backend(attempt)) return false;
  const bool was_chosen = attempt.memory != nullptr;
  if (!was_chosen && !choose_memory(attempt)) return false;
  const Attempt request{.token = token_of(index),
                        .offset = attempt.offset + attempt.progress,
                        .length = attempt.length - attempt.progress,
                        .memory = attempt.memory + attempt.progress};
  std::optional<ReadOperation> operation = attempt.source->operation(request);
  if (operation) {
    IC_ASSERT(!attempt.source->abortable());
    attempt.needs_backend = true;
    if (!may_enter_backend(attempt) || !backend->submit(*operation)) {
      if (!was_chosen) {  // others may use the memory until this one can start
        if (attempt.own_buffer) buffers.give_back(attempt.memory, attempt.length, attempt.share());
        attempt.memory = nullptr;
        attempt.own_buffer = false;
      }
      return false;
    }
    attempt.state = State::in_backend;
    hedged_first_in_backend += attempt.hedged && !attempt.hedge ? 1 : 0;
  } else {
    attempt.state = State::in_source;
  }
  ++outstanding;
  ++statistics.requests;
  if (!operation) attempt.source->start(request, source_done);
  return true;
}

void Engine::Impl::complete(std::uint64_t token, std::int64_t result) {
  const auto index = static_cast<std::uint32_t>(token);
  IC_ASSERT(index < attempts.size());
  AttemptRecord& attempt = attempts[index];
  IC_ASSERT(attempt.generation == static_cast<std::uint32_t>(token >> 32) && attempt.running());
  --outstanding;
  if (attempt.state == State::in_backend) hedged_first_in_backend -= attempt.hedged && !attempt.hedge ? 1 : 0;
  if (result > 0) statistics.bytes_read += static_cast<std::uint64_t>(result);
  const std::uint32_t transfer = attempt.transfer;
  if (transfer == kNone || transfers[transfer].delivered) {  // nobody wants it any more
    free_attempt(index);
    if (transfer != kNone) quiesce_if_idle(transfer);
    return;
  }
  attempt.state = State::ready;  // though not linked yet
  if (result < 0) {
    handle_errno(index, static_cast<int>(-result));
    return;
  }
  IC_ASSERT(result <= attempt.length - attempt.progress);
  advance(index, static_cast<std::uint32_t>(result));
}

void Engine::Impl::advance(std::uint32_t index, std::uint32_t bytes) {
  AttemptRecord& attempt = attempts[index];
  const std::uint64_t reached = attempt.offset + attempt.progress + bytes;
  if (reached >= attempt.end_of_data) {
    deliver_bytes(index);
    return;
  }
  if (bytes == 0) {
    attempt_failed(index, truncated(attempt, reached));
    return;
  }
  ++statistics.short_reads;
  attempt.retries = 0;
  const auto aligned = static_cast<std::uint32_t>(align_down(attempt.progress + bytes, attempt.source->alignment()));
  attempt.stalls = aligned > attempt.progress ? 0 : attempt.stalls + 1;
  if (attempt.stalls > kStallsMax) {
    attempt_failed(index, truncated(attempt, reached));
    return;
  }
  attempt.progress = std::max(attempt.progress, aligned);
  link_ready(index, true);
}

void Engine::Impl::handle_errno(std::uint32_t index, int system_errno) {
  AttemptRecord& attempt = attempts[index];
  if (system_errno == EINTR || system_errno == EAGAIN) {
    if (attempt.retries < options.retries_max) {
      back_off(index);
      return;
    }
  } else if (attempt.source->on_error(system_errno) == ErrorAction::retry &&
             attempt.source_retries < kSourceRetriesMax) {
    ++attempt.source_retries;
    // What was read before may end within a block of the way to read that holds now, or the other way round.
    attempt.progress = static_cast<std::uint32_t>(align_down(attempt.progress, attempt.source->alignment()));
    link_ready(index, true);
    return;
  }
  const std::string action = "reading " + std::to_string(attempt.length - attempt.progress) + " bytes" +
                             (attempt.retries > 0 ? " (tried " + std::to_string(attempt.retries + 1) + " times)" : "");
  Error error = Error::from_errno(system_errno, action)
                    .with_path(attempt.source->name())
                    .with_offset(attempt.offset + attempt.progress);
  const std::string hint = attempt.source->hint_for(system_errno);
  if (!hint.empty()) error = Error(error).with_hint(hint);
  attempt_failed(index, std::move(error));
}

// The first retry follows at once: EINTR says nothing about load. The wait of the others is a timer of poll(), so other
// transfers go on.
void Engine::Impl::back_off(std::uint32_t index) {
  AttemptRecord& attempt = attempts[index];
  ++attempt.retries;
  ++statistics.retries;
  if (attempt.retries == 1) {
    link_ready(index, true);
    return;
  }
  const unsigned doublings = std::min(attempt.retries - 2, 16u);
  const auto pause = std::min<std::chrono::nanoseconds>(kBackOffFirst * (1u << doublings), kBackOffMost);
  attempt.retry_at = clock.now() + pause;
  attempt.state = State::backing_off;
  ++backing_off;
}

}  // namespace infercluster::io
