// SPDX-License-Identifier: Apache-2.0
#include "initiator/backoff.h"

#include <algorithm>

namespace infercluster::initiator {
namespace {

constexpr unsigned kDoublingsMax = 20;

}  // namespace

Clock::TimePoint Backoff::next(Clock::TimePoint now) {
  const unsigned failures = failures_++;
  if (failures == 0) return now;
  const unsigned doublings = std::min(failures - 1, kDoublingsMax);
  const Clock::Duration most =
      std::min<Clock::Duration>(Clock::Duration(options_.first) * (1U << doublings), options_.most);
  std::uniform_int_distribution<Clock::Duration::rep> within(most.count() / 2, most.count());
  return now + Clock::Duration(within(random_));
}

}  // namespace infercluster::initiator
