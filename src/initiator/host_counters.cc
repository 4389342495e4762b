// SPDX-License-Identifier: Apache-2.0
#include "initiator/host_counters.h"

namespace infercluster::initiator {

HostCounters::HostCounters(metrics::Registry* registry, const std::string& target)
    : own_(registry == nullptr ? std::make_unique<metrics::Registry>() : nullptr),
      registry_(registry == nullptr ? *own_ : *registry),
      labels_{{"target", target}},
      reads(counter("infercluster_initiator_reads_total", "Reads of a remote namespace that came back whole.")),
      read_bytes(counter("infercluster_initiator_read_bytes_total", "Bytes of these reads.")),
      retries(counter("infercluster_initiator_retries_total", "Reads that were sent to the target again.")),
      digest_errors(
          counter("infercluster_initiator_digest_errors_total", "Data or headers that came with a wrong digest.")),
      deadline_misses(
          counter("infercluster_initiator_deadline_misses_total", "Reads that failed since their time was over.")),
      connections_lost(
          counter("infercluster_initiator_connections_lost_total", "Connections that ended by no wish of ours.")),
      reconnects(counter("infercluster_initiator_reconnects_total", "Connections made anew after a loss.")) {}

metrics::Counter HostCounters::counter(const char* name, const char* help) {
  return registry_.counter(name, help, labels_);
}

}  // namespace infercluster::initiator
