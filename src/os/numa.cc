// SPDX-License-Identifier: Apache-2.0
#include "os/numa.h"

#include <numa.h>
#include <numaif.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>

#include "os/limits.h"

namespace infercluster::os {
namespace {

bool numa_works() {
  static const bool works = ::numa_available() >= 0;  // libnuma: nothing else may be called before
  return works;
}

}  // namespace

unsigned numa_node_count() {
  if (!numa_works()) return 1;
  return static_cast<unsigned>(std::max(1, ::numa_num_configured_nodes()));
}

Status prefer_numa_node(std::span<std::byte> memory, unsigned node) {
  const unsigned last = numa_works() ? static_cast<unsigned>(std::max(0, ::numa_max_node())) : 0;
  if (node > last) {
    return Error(ErrorCode::invalid_argument,
                 "there is no NUMA node " + std::to_string(node) + ", the last is " + std::to_string(last));
  }
  if (!numa_works() || memory.empty()) return {};
  // mbind(2) itself: libnuma's own wrapper prints its errors to stderr.
  const std::unique_ptr<bitmask, decltype(&::numa_bitmask_free)> nodes(::numa_allocate_nodemask(),
                                                                       &::numa_bitmask_free);
  ::numa_bitmask_setbit(nodes.get(), node);
  if (::mbind(memory.data(), memory.size(), MPOL_PREFERRED, nodes->maskp, nodes->size + 1, 0) != 0) {
    return Error::from_errno(errno, "cannot prefer NUMA node " + std::to_string(node));
  }
  return {};
}

}  // namespace infercluster::os
