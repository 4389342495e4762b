// SPDX-License-Identifier: Apache-2.0
// Who may use a device how much: token buckets per device and priority class; the lower classes yield when foreground
// latency rises.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "io/engine.h"
#include "io/latency_signal.h"

namespace infercluster::io {

// Thread-safe. One per process, owned by api.
class Governor {
 public:
  struct Limits {  // bytes per second; 0: no limit
    std::uint64_t foreground = 0;
    std::uint64_t fill = 0;
    std::uint64_t drain = 0;
  };
  Governor(const Clock& clock, const Limits& limits);
  ~Governor();

  // How long `bytes` of this class on this device (st_dev) must wait now before it asks again; zero: go, the bytes are
  // taken from the bucket. The wait suffices, but for a class that is giving way to the foreground.
  [[nodiscard]] Clock::Duration admit(std::uint64_t device, Priority priority, std::uint64_t bytes);
  void foreground_latency(std::uint64_t device, Clock::Duration latency, std::uint64_t bytes);
  // What is over its target counts as late.
  void add_signal(std::shared_ptr<LatencySignal> signal);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace infercluster::io
