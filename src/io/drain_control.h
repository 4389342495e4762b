// SPDX-License-Identifier: Apache-2.0
// How fast a drain may go beside foreground I/O that has a latency to hold. Pure: time and readings come in.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace infercluster::io {

struct DrainLimits {
  // Bytes per second that a drain gets however late the foreground is: it must end.
  double rate_least = 8.0 * 1024 * 1024;
  // The longest request while somebody waits.
  std::uint64_t request_most = 1 << 20;
};

// While somebody waits: the rate falls by what the latency is over its target, by half at most, each half second, which
// is what readings are of; so a stall that the drain did not cause costs it one step. It rises by a part of the
// device's speed at each look while the latency is below. When nobody has waited for half a second, there is no limit.
// When somebody waits again, it goes on from the rate that served last. Thread rule: one thread.
class DrainControl {
 public:
  explicit DrainControl(const DrainLimits& limits) : limits_(limits) {}

  // Looks at most every 100 ms: more often does nothing. `ratio`: of the latency to its target, the worst; nothing:
  // nobody waits.
  void observe(Clock::TimePoint now, std::optional<double> ratio);
  // Bytes that were written, for the speed that is meant above.
  void written(Clock::TimePoint now, std::uint64_t bytes);

  // Bytes per second; nothing: no limit.
  [[nodiscard]] std::optional<double> rate() const { return governed_ ? std::optional(rate_) : std::nullopt; }
  [[nodiscard]] bool governed() const { return governed_; }
  [[nodiscard]] std::uint64_t request_bytes(std::uint64_t wanted) const {
    return governed_ && wanted > limits_.request_most ? limits_.request_most : wanted;
  }
  [[nodiscard]] double lowest_rate() const { return lowest_; }  // that was asked for; 0: never governed

 private:
  void adjust(Clock::TimePoint now, double ratio);

  const DrainLimits limits_;
  bool governed_ = false;
  double rate_ = 0;
  double speed_ = 0;  // the best of a while, bytes per second; of one that is held back only where it is better
  double governed_speed_ = 0;  // what is written while it is held back
  double lowest_ = 0;
  std::optional<Clock::TimePoint> looked_;
  std::optional<Clock::TimePoint> yielded_;  // when the rate last fell
  Clock::TimePoint waited_;                  // when somebody last did
  std::optional<Clock::TimePoint> counting_;
  double counted_ = 0;
};

}  // namespace infercluster::io
