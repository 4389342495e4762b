// SPDX-License-Identifier: Apache-2.0
#include "testing/gpu_double/counters.h"

#include <cstdio>

namespace infercluster::gpu_double {

std::optional<std::uint64_t> Counters::value(std::string_view name) const {
#define IC_COUNTER(counter) \
  if (name == #counter) return counter;
  IC_GPU_DOUBLE_LIVE(IC_COUNTER)
  IC_GPU_DOUBLE_TOTALS(IC_COUNTER)
#undef IC_COUNTER
  if (name == "live") {
    return allocations + streams + events + registrations + contexts_retained + threads + cufile_handles +
           cufile_buffers + cufile_driver_opens;
  }
  return std::nullopt;
}

void Counters::clear() {
#define IC_COUNTER(counter) counter = 0;
  IC_GPU_DOUBLE_LIVE(IC_COUNTER)
  IC_GPU_DOUBLE_TOTALS(IC_COUNTER)
#undef IC_COUNTER
}

Counters& counters() {
  static Counters& instance = *new Counters;  // never destroyed: workers may outlive main()
  return instance;
}

void count_violation(std::string_view what) {
  ++counters().violations;
  std::fprintf(stderr, "gpu double: violation: %.*s\n", static_cast<int>(what.size()), what.data());
}

}  // namespace infercluster::gpu_double
