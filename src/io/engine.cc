// SPDX-License-Identifier: Apache-2.0
#include "io/engine.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/thread.h"
#include "io/engine_impl.h"

namespace infercluster::io {

Engine::Impl::Impl(std::unique_ptr<Backend> backend_in, const Clock& clock_in, const Options& options_in)
    : backend(std::move(backend_in)),
      clock(clock_in),
      options(options_in),
      transfers_max(std::size_t{2} * backend->capacity()),
      background_max(backend->capacity()),
      transfers(transfers_max),
      attempts(3 * transfers_max),  // two lanes each, and abandoned ones
      events(2 * transfers_max),
      results(backend->capacity()),
      buffers(options_in.hedge_bytes_max) {
  free_transfers.reserve(transfers.size());
  for (auto i = static_cast<std::uint32_t>(transfers.size()); i > 0; --i) free_transfers.push_back(i - 1);
  free_attempts.reserve(attempts.size());
  for (auto i = static_cast<std::uint32_t>(attempts.size()); i > 0; --i) free_attempts.push_back(i - 1);
  callback_results.reserve(attempts.size());
  callback_batch.reserve(attempts.size());
  source_done = [this](std::uint64_t token, std::int64_t result) {
    // wake() under the lock: once the engine has seen this result it may destroy the backend.
    const std::lock_guard lock(callback_mutex);
    callback_results.push_back({.token = token, .result = result});
    backend->wake();
  };
}

bool Engine::Impl::submit(const Transfer& transfer) {
  IC_ASSERT(transfer.sources != nullptr && !transfer.sources->empty());
  IC_ASSERT(transfer.length > 0 && transfer.length <= kRequestBytesMax && transfer.memory != nullptr);
  IC_ASSERT(transfer.end_of_data > transfer.offset && transfer.end_of_data - transfer.offset <= transfer.length);
  const bool background = transfer.priority != Priority::foreground;
  if (free_transfers.empty() || free_attempts.empty()) return false;
  if (background && background_active >= background_max) return false;
  const std::uint32_t index = free_transfers.back();
  free_transfers.pop_back();
  TransferRecord& record = transfers[index];
  record = TransferRecord{};
  record.used = true;
  record.transfer = transfer;
  record.submitted = clock.now();
  record.hedged = transfer.hedge_after.has_value() && transfer.sources->size() > 1;
  hedgeable += record.hedged ? 1 : 0;
  background_active += background ? 1 : 0;
  ++active;
  begin_attempt(index, false);
  pump();
  return true;
}

void Engine::Impl::push_event(Event::Kind kind, std::uint32_t transfer) {
  IC_ASSERT(events_count < events.size());
  events[(events_first + events_count) % events.size()] = {.kind = kind, .transfer = transfer};
  ++events_count;
}

std::size_t Engine::Impl::hand_out(std::span<Event> out) {
  std::size_t count = 0;
  while (count < out.size() && events_count > 0) {
    const PendingEvent pending = events[events_first];
    events_first = (events_first + 1) % events.size();
    --events_count;
    TransferRecord& record = transfers[pending.transfer];
    Event& event = out[count++];
    event = Event{};
    event.kind = pending.kind;
    event.token = record.transfer.token;
    if (pending.kind == Event::Kind::delivered) {
      event.error = std::move(record.error);
      event.source_index = record.source_index;
      event.latency = record.latency;
      continue;
    }
    background_active -= record.transfer.priority != Priority::foreground ? 1 : 0;
    record.used = false;
    free_transfers.push_back(pending.transfer);
    --active;
  }
  return count;
}

void Engine::Impl::drain_callbacks() {
  {
    const std::lock_guard lock(callback_mutex);
    callback_batch.swap(callback_results);
  }
  for (const OperationResult& result : callback_batch) complete(result.token, result.result);
  callback_batch.clear();
}

std::chrono::nanoseconds Engine::Impl::until_next_timer(std::chrono::nanoseconds limit) const {
  if (backing_off == 0 && hedgeable == 0) return limit;
  const Clock::TimePoint now = clock.now();
  const auto consider = [&](Clock::TimePoint due) {
    limit = std::min(limit, std::max(due - now, std::chrono::nanoseconds::zero()));
  };
  if (backing_off > 0) {
    for (const AttemptRecord& attempt : attempts) {
      if (attempt.state == AttemptRecord::State::backing_off) consider(attempt.retry_at);
    }
  }
  if (hedgeable > 0) {
    for (const TransferRecord& record : transfers) {
      const bool hedge_possible = record.used && !record.delivered && record.hedged &&
                                  record.next_source < record.transfer.sources->size() &&
                                  (record.lanes[0] == kNone) != (record.lanes[1] == kNone);
      if (hedge_possible) consider(record.asked + *record.transfer.hedge_after);
    }
  }
  return limit;
}

void Engine::Impl::run_timers() {
  if (backing_off == 0 && hedgeable == 0) return;
  const Clock::TimePoint now = clock.now();
  for (std::uint32_t i = 0; backing_off > 0 && i < attempts.size(); ++i) {
    if (attempts[i].state != AttemptRecord::State::backing_off || attempts[i].retry_at > now) continue;
    --backing_off;
    link_ready(i, true);
  }
  if (hedgeable > 0) start_due_hedges(now);
}

void Engine::Impl::settle(std::chrono::nanoseconds timeout) {
  run_timers();
  pump();
  if (events_count > 0) timeout = std::chrono::nanoseconds::zero();
  const std::size_t count = backend->wait(results, until_next_timer(timeout));
  for (std::size_t i = 0; i < count; ++i) complete(results[i].token, results[i].result);
  drain_callbacks();
  run_timers();
  pump();
}

std::size_t Engine::Impl::poll(std::span<Event> out, std::chrono::nanoseconds timeout) {
  settle(timeout);
  return hand_out(out);
}

Engine::Engine(std::unique_ptr<Backend> backend, const Clock& clock, const Options& options)
    : impl_(std::make_unique<Impl>(std::move(backend), clock, options)) {}

Engine::~Engine() {
  if (in_forked_child()) return;  // reads, threads and rings stayed with the parent
  impl_->cancel();
  while (impl_->outstanding > 0) {
    impl_->events_count = 0;
    impl_->settle(std::chrono::seconds(1));
  }
}

const Backend& Engine::backend() const {
  return *impl_->backend;
}
bool Engine::submit(const Transfer& transfer) {
  return impl_->submit(transfer);
}
std::size_t Engine::poll(std::span<Event> events, std::chrono::nanoseconds timeout) {
  return impl_->poll(events, timeout);
}
unsigned Engine::active() const {
  return impl_->active;
}
void Engine::cancel() {
  impl_->cancel();
}
void Engine::wake() {
  impl_->backend->wake();
}
const EngineStatistics& Engine::statistics() const {
  return impl_->statistics;
}

}  // namespace infercluster::io
