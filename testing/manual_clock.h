// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

#include "base/clock.h"

namespace infercluster::testing {

// A clock that stands still until a test moves it. Thread-safe.
class ManualClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return TimePoint(Duration(nanoseconds_.load())); }
  void advance(Duration by) { nanoseconds_ += by.count(); }

 private:
  std::atomic<Duration::rep> nanoseconds_{0};
};

}  // namespace infercluster::testing
