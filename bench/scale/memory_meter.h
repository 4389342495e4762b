// SPDX-License-Identifier: Apache-2.0
// Heap memory of this program, by an operator new of its own.
#pragma once

#include <cstdint>

namespace infercluster::scale {

// Bytes that are allocated now. One thread.
std::uint64_t heap_bytes();
// The most that was allocated at once since the last call of restart_peak().
std::uint64_t heap_peak();
void restart_peak();

}  // namespace infercluster::scale
