// SPDX-License-Identifier: Apache-2.0
// What became of a host's reads and connections, as metrics.
#pragma once

#include <memory>
#include <string>

#include "metrics/registry.h"

namespace infercluster::initiator {

// Thread rule: any thread.
class HostCounters {
 public:
  // Counts in `registry`, or in one of its own when that is null. `target` is the label of the same name.
  HostCounters(metrics::Registry* registry, const std::string& target);

 private:
  std::unique_ptr<metrics::Registry> own_;
  metrics::Registry& registry_;
  metrics::Labels labels_;
  metrics::Counter counter(const char* name, const char* help);

 public:
  const metrics::Counter reads;             // that came back whole
  const metrics::Counter read_bytes;        // of these
  const metrics::Counter retries;           // reads that were sent again
  const metrics::Counter digest_errors;     // data or headers whose digest was wrong
  const metrics::Counter deadline_misses;   // reads that failed since their time was over
  const metrics::Counter connections_lost;  // after they were made
  const metrics::Counter reconnects;        // that succeeded
};

}  // namespace infercluster::initiator
