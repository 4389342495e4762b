// SPDX-License-Identifier: Apache-2.0
#include "io/foreground_latency.h"

#include <utility>

namespace infercluster::io {
namespace {

constexpr auto kPublishEvery = std::chrono::milliseconds(50);

}  // namespace

Result<std::unique_ptr<ForegroundLatency>> ForegroundLatency::open(const std::string& folder, Clock::Duration target) {
  IC_TRY(auto publisher, LatencyPublisher::open(folder));
  return std::unique_ptr<ForegroundLatency>(
      new ForegroundLatency(std::move(publisher), target));  // NOLINT: the constructor is private
}

void ForegroundLatency::add(Clock::TimePoint now, Clock::Duration latency) {
  window_.add(now, latency);
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || now - published_ < kPublishEvery) return;
  published_ = now;
  const auto p99 = window_.p99(now);
  // A drain that is not told goes on as if nobody waited: no reason to fail a read.
  if (p99) static_cast<void>(publisher_->publish(now, {*p99, target_}));
}

}  // namespace infercluster::io
