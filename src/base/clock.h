// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace infercluster {

// Time is injected: production code takes a Clock&, tests drive one by hand (testing/manual_clock.h).
class Clock {
 public:
  using Duration = std::chrono::nanoseconds;
  using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

  virtual ~Clock() = default;
  [[nodiscard]] virtual TimePoint now() const = 0;
};

// CLOCK_MONOTONIC. Thread-safe; lives for ever.
const Clock& steady_clock();

inline double seconds_between(Clock::TimePoint from, Clock::TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace infercluster
