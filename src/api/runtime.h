// SPDX-License-Identifier: Apache-2.0
// What lives as long as the process.
#pragma once

#include "api/load_metrics.h"
#include "base/result.h"
#include "io/governor.h"
#include "load/job.h"
#include "load/page_cache_filler.h"
#include "metrics/registry.h"

namespace infercluster::api {

// Made at first use, and never destroyed: jobs may run until the process ends. Thread-safe.
class Runtime {
 public:
  // The process that calls it first owns it; in a child that was forked after that it is an error (unsupported).
  static Result<Runtime*> get();

  [[nodiscard]] const load::Environment& environment() const { return environment_; }
  [[nodiscard]] const metrics::Registry& registry() const { return registry_; }
  [[nodiscard]] const LoadMetrics& metrics() const { return metrics_; }

 private:
  Runtime();
  metrics::Registry registry_;
  LoadMetrics metrics_;
  io::Governor governor_;
  load::PageCacheFiller filler_;
  load::GdsBook gds_;
  load::Environment environment_;
};

}  // namespace infercluster::api
