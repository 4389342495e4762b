// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "load/report.h"
#include "metrics/registry.h"

namespace infercluster::api {

// The process's counters about loads. Thread-safe.
class LoadMetrics {
 public:
  explicit LoadMetrics(metrics::Registry& registry);

  void load_started() const { loads_.add(); }
  void stream_started() const { streams_.add(); }
  // One that was refused, or that ended with this error.
  void failed(ErrorCode code) const { failures_[static_cast<std::size_t>(code)].add(); }
  // One that ran to its end; bytes count when it ended well.
  void ended(const load::Report& report, const Error* error) const;
  void page_cache_filled(std::uint64_t bytes) const { filled_bytes_.add(static_cast<double>(bytes)); }
  void checked(std::uint64_t bytes) const { checked_bytes_.add(static_cast<double>(bytes)); }

 private:
  [[nodiscard]] metrics::Counter loaded_bytes(const std::string& mode) const;

  metrics::Registry& registry_;
  metrics::Counter loads_;
  metrics::Counter streams_;
  std::vector<metrics::Counter> failures_;  // by ErrorCode
  metrics::Counter waited_storage_;
  metrics::Counter waited_memory_;
  metrics::Counter waited_verify_;
  metrics::Counter waited_other_;
  metrics::Counter retries_;
  metrics::Counter filled_bytes_;
  metrics::Counter checked_bytes_;
};

}  // namespace infercluster::api
