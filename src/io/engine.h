// SPDX-License-Identifier: Apache-2.0
// Runs transfers over a backend: splits nothing, loops over short reads, retries EINTR and EAGAIN, turns to the next
// source on failure, hedges after a deadline, and keeps delivered and quiesced apart.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "io/backend.h"
#include "io/source.h"

namespace infercluster::io {

enum class Priority : std::uint8_t { foreground, fill, drain };

// One extent to one memory span. For a source in direct mode, offset, length and memory obey its alignment(); the end
// of the file may lie inside the extent's last `alignment` bytes, and then a read that ends at the end of the file is
// whole: `end_of_data` says where the wanted bytes end.
struct Transfer {
  std::uint64_t token = 0;             // comes back with the events
  const SourceSet* sources = nullptr;  // tried in order; outlives the transfer
  std::uint64_t offset = 0;
  std::uint32_t length = 0;  // 1 to kRequestBytesMax
  std::uint64_t end_of_data =
      0;  // file offset; bytes from here on need not be there (the file's size, at most offset + length)
  std::byte* memory = nullptr;
  Priority priority = Priority::foreground;
  // Set: when nothing is delivered after this long, the next source is asked beside the first. Sources that cannot be
  // aborted then read into buffers of the engine, never into `memory`, and the winner's bytes are copied there (counted
  // as moved_bytes).
  std::optional<std::chrono::nanoseconds> hedge_after;
};

struct Event {
  enum class Kind : std::uint8_t {
    delivered,  // the bytes are in `memory` (or the transfer failed for good: see error)
    quiesced,   // nothing writes to memory of this transfer any more; always the last event of a transfer, exactly once
  };
  Kind kind = Kind::delivered;
  std::uint64_t token = 0;
  std::optional<Error>
      error;  // of delivered: the first source's error, with path and offset; code cancelled after cancel()
  std::uint32_t source_index = 0;  // which source delivered
  Clock::Duration latency{};       // from submit to delivery
};

struct EngineStatistics {
  std::uint64_t requests = 0;    // operations and attempts begun
  std::uint64_t bytes_read = 0;  // what they returned, losers of hedges too
  std::uint64_t short_reads = 0;
  std::uint64_t retries = 0;         // EINTR, EAGAIN
  std::uint64_t source_changes = 0;  // failovers to a next source
  std::uint64_t hedges = 0;
  std::uint64_t hedges_won = 0;
  std::uint64_t quarantined_bytes = 0;  // memory that an abandoned read may still write, now
  std::uint64_t moved_bytes = 0;
};

// Thread rule: one thread calls everything but wake(). Destruction cancels, and waits until all is quiescent.
class Engine {
 public:
  struct Options {
    unsigned retries_max = 100;                 // of EINTR and EAGAIN, per transfer in a row
    std::uint64_t hedge_bytes_max = 64u << 20;  // buffers for hedged transfers; over it a transfer waits
  };
  Engine(std::unique_ptr<Backend> backend, const Clock& clock, const Options& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] const Backend& backend() const;
  // False: at capacity; poll() first. Steady state allocates nothing.
  [[nodiscard]] bool submit(const Transfer& transfer);
  // Waits as Backend::wait does, then moves on what can move. Returns the number of events put into `events`; that may
  // be none before the timeout, when only a part of a transfer was done or a timer of the engine's came due.
  std::size_t poll(std::span<Event> events, std::chrono::nanoseconds timeout);
  // Transfers that were submitted and are not quiesced.
  [[nodiscard]] unsigned active() const;
  // Every transfer not yet delivered is delivered with `cancelled`; what is in flight quiesces in its time.
  void cancel();
  void wake();  // any thread
  [[nodiscard]] const EngineStatistics& statistics() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace infercluster::io
