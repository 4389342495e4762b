// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/drain.h"

#include <algorithm>
#include <utility>

namespace infercluster::checkpoint {

std::unique_ptr<io::DrainGovernor> make_drain_governor(const Options::Foreground& foreground, std::uint64_t device) {
  std::vector<std::shared_ptr<io::LatencySignal>> signals = foreground.signals;
  const std::string folder = foreground.node ? io::latency_folder() : std::string();
  if (!folder.empty()) signals.push_back(io::make_node_signal(folder));
  if (foreground.disk_target.count() > 0) signals.push_back(io::make_disk_signal(device, foreground.disk_target));
  if (foreground.pressure_target.count() > 0) signals.push_back(io::make_pressure_signal(foreground.pressure_target));
  if (signals.empty()) return nullptr;
  io::DrainLimits limits;
  limits.rate_least = foreground.rate_least;
  return std::make_unique<io::DrainGovernor>(steady_clock(), limits, std::move(signals));
}

io::DrainGovernor::Report report_of(const WriteOptions& options) {
  return options.drain == nullptr ? io::DrainGovernor::Report{} : options.drain->report();
}

void add_throttling(SaveReport& report, const io::DrainGovernor::Report& before,
                    const io::DrainGovernor::Report& after) {
  report.throttled_seconds += after.throttled_seconds - before.throttled_seconds;
  report.requests_cut += after.requests_cut - before.requests_cut;
  if (after.lowest_rate == 0) return;
  report.lowest_rate = report.lowest_rate == 0 ? after.lowest_rate : std::min(report.lowest_rate, after.lowest_rate);
}

}  // namespace infercluster::checkpoint
