// SPDX-License-Identifier: Apache-2.0
// When to connect anew. Pure: the caller brings the time.
#pragma once

#include <chrono>
#include <cstdint>
#include <random>

#include "base/clock.h"

namespace infercluster::initiator {

// Thread rule: one thread at a time.
class Backoff {
 public:
  struct Options {
    std::chrono::milliseconds first{20};
    std::chrono::milliseconds most{2000};
  };
  // `seed` differs between hosts: those that lost one target must not come back to it all at once.
  Backoff(const Options& options, std::uint64_t seed) : options_(options), random_(seed) {}

  // The connection was lost, or an attempt at one failed: when to make the next. At once after a connection that was of
  // use; else after delays that double up to `most`, each shortened at random by up to a half.
  Clock::TimePoint next(Clock::TimePoint now);
  // The connection is of use: a read came back over it. One that merely connects proves nothing.
  void proved() { failures_ = 0; }

 private:
  Options options_;
  std::mt19937_64 random_;
  unsigned failures_ = 0;  // in a row
};

}  // namespace infercluster::initiator
