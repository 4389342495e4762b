// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "initiator/backoff.h"
#include "metrics/registry.h"
#include "nvme/auth_secret.h"
#include "nvme/pdu.h"

namespace infercluster::initiator {

struct HostOptions {
  std::string host_nqn;  // empty: one of this process's own making
  // To prove this host where the target asks for it; with a controller's secret, the target has to prove itself.
  std::optional<nvme::Credentials> credentials;
  nvme::Digests digests;
  unsigned queues = 1;
  std::uint16_t queue_entries = 32;
  // Of connecting as a whole: all queues, and all that is asked before the first read.
  std::chrono::milliseconds connect_timeout{5000};
  // A connection with reads under way on which nothing has come for this long counts as lost.
  std::chrono::nanoseconds silence_max = std::chrono::seconds(1);
  // Of each read from its start to its end, with all waiting, reconnecting and retrying: then it fails.
  std::chrono::nanoseconds read_deadline = std::chrono::seconds(5);
  // How often a read is tried again whose data came damaged, or which the target failed but says may be retried. Reads
  // that only shared a connection which was lost are tried again until their deadline.
  unsigned retries_max = 2;
  Backoff::Options backoff;
  std::chrono::milliseconds keep_alive{5000};
  metrics::Registry* registry = nullptr;  // where to count; lives longer than the host. Without: one of its own
};

}  // namespace infercluster::initiator
