// SPDX-License-Identifier: Apache-2.0
#include "api/load_metrics.h"

namespace infercluster::api {
namespace {

metrics::Counter counter_of_loads(metrics::Registry& registry, const std::string& kind) {
  return registry.counter("infercluster_loads_total", "Loads that were started", {{"kind", kind}});
}

metrics::Counter counter_of_waits(metrics::Registry& registry, const std::string& cause) {
  return registry.counter("infercluster_load_wait_seconds_total",
                          "Where loads spent their time: waiting for storage or memory, checking checksums, all else",
                          {{"cause", cause}});
}

}  // namespace

// Every series is there from the start, so that a rate has a zero to begin at.
LoadMetrics::LoadMetrics(metrics::Registry& registry)
    : registry_(registry),
      loads_(counter_of_loads(registry, "load")),
      streams_(counter_of_loads(registry, "stream")),
      waited_storage_(counter_of_waits(registry, "storage")),
      waited_memory_(counter_of_waits(registry, "memory")),
      waited_verify_(counter_of_waits(registry, "verify")),
      waited_other_(counter_of_waits(registry, "other")),
      retries_(registry.counter("infercluster_read_retries_total", "Reads that were interrupted and tried again")),
      filled_bytes_(registry.counter("infercluster_page_cache_fill_bytes_total",
                                     "Bytes asked for into the page cache behind direct loads")),
      checked_bytes_(registry.counter("infercluster_checked_bytes_total", "Bytes that seal and verify have read")) {
  for (std::size_t code = 0; code <= static_cast<std::size_t>(ErrorCode::internal); ++code) {
    failures_.push_back(registry.counter("infercluster_load_failures_total",
                                         "Loads that were refused or ended with an error, by its code",
                                         {{"code", std::string(name_of(static_cast<ErrorCode>(code)))}}));
  }
  for (const char* const mode : {"direct", "buffered", "resident"}) static_cast<void>(loaded_bytes(mode));
}

metrics::Counter LoadMetrics::loaded_bytes(const std::string& mode) const {
  return registry_.counter("infercluster_loaded_bytes_total",
                           "Bytes of tensors that were loaded, by how their files were read", {{"mode", mode}});
}

void LoadMetrics::ended(const load::Report& report, const Error* error) const {
  waited_storage_.add(report.waited.storage);
  waited_memory_.add(report.waited.memory);
  waited_verify_.add(report.waited.verify);
  waited_other_.add(report.waited.other);
  retries_.add(static_cast<double>(report.retries));
  if (error != nullptr) return failed(error->code());
  for (const load::FileReport& file : report.files) {
    if (file.bytes > 0) loaded_bytes(file.mode).add(static_cast<double>(file.bytes));
  }
}

}  // namespace infercluster::api
