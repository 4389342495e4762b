// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "io/latency_signal.h"

namespace infercluster::io {

// Of reads that somebody waits for, against the latency that he wants them to have: tells the drains of the node, so
// that they give way. Thread-safe.
class ForegroundLatency {
 public:
  // `folder`: latency_folder(). Errors: those of LatencyPublisher::open.
  static Result<std::unique_ptr<ForegroundLatency>> open(const std::string& folder, Clock::Duration target);

  // One read that ended now. Publishes at most every 50 ms.
  void add(Clock::TimePoint now, Clock::Duration latency);

 private:
  ForegroundLatency(std::unique_ptr<LatencyPublisher> publisher, Clock::Duration target)
      : publisher_(std::move(publisher)), target_(target) {}

  const std::unique_ptr<LatencyPublisher> publisher_;
  const Clock::Duration target_;
  LatencyWindow window_;
  std::mutex mutex_;
  Clock::TimePoint published_;  // guarded by mutex_
};

}  // namespace infercluster::io
