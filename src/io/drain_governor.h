// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "io/drain_control.h"
#include "io/latency_signal.h"

namespace infercluster::io {

// Lets a drain write as fast as foreground I/O beside it allows. Closed-loop: it reads the signals while the drain
// asks, and at no other time. Thread-safe.
class DrainGovernor {
 public:
  DrainGovernor(const Clock& clock, const DrainLimits& limits, std::vector<std::shared_ptr<LatencySignal>> signals)
      : clock_(clock), control_(limits), signals_(std::move(signals)) {}

  struct Turn {
    Clock::Duration wait{};           // zero: write now; else ask again after it
    std::uint64_t request_bytes = 0;  // at most so many
  };
  // Of a thread that has `wanted` bytes to write. What it is let write counts as written.
  Turn ask(std::uint64_t wanted);

  struct Report {
    double throttled_seconds = 0;    // that threads were told to wait, together
    double lowest_rate = 0;          // bytes per second; 0: nobody waited for anything
    std::uint64_t requests_cut = 0;  // that were made shorter
  };
  [[nodiscard]] Report report() const;

 private:
  void look(Clock::TimePoint now);

  const Clock& clock_;
  mutable std::mutex mutex_;
  DrainControl control_;                                       // guarded by mutex_
  const std::vector<std::shared_ptr<LatencySignal>> signals_;  // read under mutex_
  Clock::TimePoint looked_;                                    // guarded by mutex_
  Clock::TimePoint paid_;                                      // guarded by mutex_
  double debt_ = 0;                                            // bytes that were let through early; guarded by mutex_
  Report report_;                                              // guarded by mutex_
};

}  // namespace infercluster::io
