// SPDX-License-Identifier: Apache-2.0
// Queued work on device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "testing/gpu_double/device_memory.h"
#include "testing/gpu_double/driver.h"

namespace infercluster::gpu_double {

inline constexpr int kPitchMax = 0x7FFFFFFF;  // of 2D copies, as current devices have it

// One end of a copy: rows in device memory, or in host memory.
struct Side {
  bool on_device = false;
  std::uint64_t address = 0;
  std::size_t pitch = 0;
};

// Queues a copy of `height` rows of `width` bytes, as the driver does:
// - a source is read, and a target written, only when the copy runs;
// - the target in device memory is poisoned at once, or, when earlier work still needs its bytes, when the copy begins;
// - unregistered host memory is read before return (to the device), or written before return (from it).
// The memory of a device that is touched must lie in one allocation; a target must belong to the current context.
CuResult enqueue_copy(const std::shared_ptr<Context>& current, const StreamEntry& stream, const Side& to,
                      const Side& from, std::size_t width, std::size_t height);
CuResult enqueue_fill(const std::shared_ptr<Context>& current, const StreamEntry& stream, Address to,
                      unsigned char value, std::size_t bytes);

}  // namespace infercluster::gpu_double
