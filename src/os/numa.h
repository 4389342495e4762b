// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"

namespace infercluster::os {

// Asks the kernel to take the pages of `memory` that are not there yet from `node` as long as that has free ones. The
// span starts at a page boundary. Without NUMA in the kernel, node 0 is always fine. Containers may refuse it
// (permission).
Status prefer_numa_node(std::span<std::byte> memory, unsigned node);

}  // namespace infercluster::os
