// SPDX-License-Identifier: Apache-2.0
#include "io/drain_governor.h"

#include <algorithm>
#include <cmath>

namespace infercluster::io {
namespace {

using std::chrono::milliseconds;

constexpr auto kLookEvery = milliseconds(100);
constexpr auto kAskAgain = milliseconds(50);  // at the latest: somebody may have stopped waiting

}  // namespace

void DrainGovernor::look(Clock::TimePoint now) {
  if (looked_ != Clock::TimePoint{} && now - looked_ < kLookEvery) return;
  looked_ = now;
  std::optional<double> worst;
  for (const auto& signal : signals_) {
    const auto reading = signal->read(now);
    if (!reading) continue;
    const double ratio = static_cast<double>(reading->latency.count()) / static_cast<double>(reading->target.count());
    worst = std::max(worst.value_or(0.0), ratio);
  }
  control_.observe(now, worst);
}

DrainGovernor::Turn DrainGovernor::ask(std::uint64_t wanted) {
  const std::lock_guard lock(mutex_);
  const Clock::TimePoint now = clock_.now();
  look(now);
  const std::uint64_t request = control_.request_bytes(wanted);
  const auto rate = control_.rate();
  if (rate) {
    debt_ = std::max(0.0, debt_ - *rate * seconds_between(paid_, now));
    if (debt_ > 0) {
      const auto wait = std::chrono::duration_cast<Clock::Duration>(std::chrono::duration<double>(debt_ / *rate));
      const Clock::Duration told = std::clamp<Clock::Duration>(wait, Clock::Duration(1), kAskAgain);
      paid_ = now;
      report_.throttled_seconds += std::chrono::duration<double>(told).count();
      return {told, request};
    }
    debt_ += static_cast<double>(request);
  } else {
    debt_ = 0;
  }
  paid_ = now;
  report_.requests_cut += request < wanted ? 1 : 0;
  control_.written(now, request);
  return {Clock::Duration::zero(), request};
}

DrainGovernor::Report DrainGovernor::report() const {
  const std::lock_guard lock(mutex_);
  Report report = report_;
  report.lowest_rate = control_.lowest_rate();
  return report;
}

}  // namespace infercluster::io
