// SPDX-License-Identifier: Apache-2.0
// The engine's records. A transfer has up to two attempts at a time, its lanes: the first, and the hedge beside it. An
// attempt reads one source, in as many operations as short counts and retries ask for. Where things are: engine.cc
// submit and poll; engine_attempts.cc from ready to a result; engine_delivery.cc failover, hedges, delivery and
// quiescence.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "io/engine.h"
#include "io/hedge_buffers.h"

namespace infercluster::io {

inline constexpr std::uint32_t kNone = UINT32_MAX;

struct AttemptRecord {
  enum class State : std::uint8_t { free, ready, backing_off, in_backend, in_source };
  State state = State::free;
  Priority priority = Priority::foreground;
  bool hedge = false;          // begun beside another attempt
  bool hedged = false;         // of a transfer that may be hedged
  bool needs_backend = false;  // its source gave an operation before: no need to ask again while the backend is full
  std::uint32_t generation = 0;
  std::uint32_t transfer = kNone;  // none: abandoned, and reading into a buffer of the engine's
  Source* source = nullptr;
  std::uint32_t source_index = 0;
  std::uint64_t offset = 0;  // of the transfer; the next operation starts at offset + progress
  std::uint32_t length = 0;
  std::uint64_t end_of_data = 0;
  std::byte* memory = nullptr;  // null until the first operation
  bool own_buffer = false;      // `memory` is from HedgeBuffers
  std::uint32_t progress = 0;   // bytes
  unsigned retries = 0;         // EINTR and EAGAIN since the last progress
  unsigned stalls = 0;          // short reads in a row that ended within an alignment block
  unsigned source_retries = 0;  // ErrorAction::retry
  std::uint32_t quarantined = 0;
  Clock::TimePoint retry_at;
  std::uint32_t previous = kNone;  // in the ready list
  std::uint32_t next = kNone;

  [[nodiscard]] bool running() const { return state == State::in_backend || state == State::in_source; }
  [[nodiscard]] BufferShare share() const { return hedge ? BufferShare::hedge : BufferShare::first_attempt; }
};

struct TransferRecord {
  bool used = false;
  bool delivered = false;
  bool hedged = false;  // a deadline is set, and there is another source to ask
  Transfer transfer;
  std::array<std::uint32_t, 2> lanes{kNone, kNone};  // attempts
  std::uint32_t next_source = 0;                     // the first not asked yet
  Clock::TimePoint submitted;
  Clock::TimePoint asked;  // when the latest source was asked
  std::optional<Error> error;
  std::uint32_t error_source = 0;
  std::uint32_t source_index = 0;
  Clock::Duration latency{};
};

// A doubly linked list through AttemptRecord, so that an attempt that has to wait for something lets the next one pass.
struct ReadyList {
  std::uint32_t first = kNone;
  std::uint32_t last = kNone;
};

struct Engine::Impl {
  Impl(std::unique_ptr<Backend> backend_in, const Clock& clock_in, const Options& options_in);

  // engine.cc
  bool submit(const Transfer& transfer);
  std::size_t poll(std::span<Event> out, std::chrono::nanoseconds timeout);
  void settle(std::chrono::nanoseconds timeout);  // poll without handing out events
  std::size_t hand_out(std::span<Event> out);
  void drain_callbacks();
  void push_event(Event::Kind kind, std::uint32_t transfer);
  [[nodiscard]] std::chrono::nanoseconds until_next_timer(std::chrono::nanoseconds limit) const;
  void run_timers();

  // engine_attempts.cc
  void link_ready(std::uint32_t index, bool in_front);
  void unlink_ready(std::uint32_t index);
  void pump();
  bool issue(std::uint32_t index);
  [[nodiscard]] bool may_enter_backend(const AttemptRecord& attempt) const;
  bool choose_memory(AttemptRecord& attempt);
  [[nodiscard]] std::uint64_t token_of(std::uint32_t index) const;
  void complete(std::uint64_t token, std::int64_t result);
  void advance(std::uint32_t index, std::uint32_t bytes);
  void handle_errno(std::uint32_t index, int system_errno);
  void back_off(std::uint32_t index);

  // engine_delivery.cc
  void begin_attempt(std::uint32_t transfer, bool beside_another);
  void free_attempt(std::uint32_t index);
  void attempt_failed(std::uint32_t index, Error error);
  void deliver_bytes(std::uint32_t index);
  void deliver_error(std::uint32_t transfer, Error error);
  void finish_delivery(std::uint32_t transfer);
  void leave(std::uint32_t index);
  void quiesce_if_idle(std::uint32_t transfer);
  void start_due_hedges(Clock::TimePoint now);
  void cancel();

  const std::unique_ptr<Backend> backend;
  const Clock& clock;
  const Options options;
  const std::size_t transfers_max;
  const unsigned background_max;  // of fill and drain together: foreground always finds room
  unsigned active = 0;
  unsigned background_active = 0;
  unsigned outstanding = 0;  // attempts that the backend or a source works on
  unsigned hedged_first_in_backend = 0;
  unsigned backing_off = 0;
  unsigned hedgeable = 0;  // transfers that may still ask for a hedge
  std::vector<TransferRecord> transfers;
  std::vector<std::uint32_t> free_transfers;
  std::vector<AttemptRecord> attempts;
  std::vector<std::uint32_t> free_attempts;
  std::array<ReadyList, 3> ready;  // by priority
  struct PendingEvent {
    Event::Kind kind = Event::Kind::delivered;
    std::uint32_t transfer = 0;
  };
  std::vector<PendingEvent> events;  // ring
  std::size_t events_first = 0;
  std::size_t events_count = 0;
  std::vector<OperationResult> results;
  HedgeBuffers buffers;
  EngineStatistics statistics;

  // Results of sources that read by themselves; from any thread. The vectors are sized at construction.
  AttemptDone source_done;
  std::mutex callback_mutex;
  std::vector<OperationResult> callback_results;  // guarded by callback_mutex
  std::vector<OperationResult> callback_batch;
};

}  // namespace infercluster::io
