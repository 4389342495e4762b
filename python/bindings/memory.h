// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

namespace infercluster::python {

// Bytes of a tensor, as a writable Python buffer. Whoever holds a view of it keeps the memory.
struct Memory {
  std::shared_ptr<void> owner;
  void* data = nullptr;
  std::size_t bytes = 0;
};

// Bytes of a tensor on a CUDA device.
struct DeviceMemory {
  std::shared_ptr<void> owner;
  void* data = nullptr;  // of the device: never touched by the host
  std::size_t bytes = 0;
  int device = 0;
};

}  // namespace infercluster::python
