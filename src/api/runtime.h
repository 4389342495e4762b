// SPDX-License-Identifier: Apache-2.0
// What lives as long as the process.
#pragma once

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
  void count_load() const { loads_.add(); }
  void count_stream() const { streams_.add(); }
  void count_checked(std::uint64_t bytes) const { checked_bytes_.add(static_cast<double>(bytes)); }

 private:
  Runtime();
  io::Governor governor_;
  load::PageCacheFiller filler_;
  load::Environment environment_;
  metrics::Registry registry_;
  metrics::Counter loads_;
  metrics::Counter streams_;
  metrics::Counter checked_bytes_;
};

}  // namespace infercluster::api
