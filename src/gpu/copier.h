// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "base/result.h"
#include "gpu/device.h"
#include "gpu/stream.h"
#include "memory/copier.h"

namespace infercluster::gpu {

struct CopierOptions {
  // The caller's stream: copies begin only when the work that was queued on it until make_copier() is done. A caching
  // allocator hands out memory whose last use may still be queued there.
  std::optional<StreamId> after;
};

// Copies by the device's DMA engines, on a stream of its own: from the host to the device, within the device, or back.
// copy() and copy_rows() return at once. Host memory should be Pinned: other memory is copied correctly, but slowly.
//  - Adjacent copies are merged into one when both sides lie in one allocation (or one Pinned). They are given to the
//    device at the next copy that is not adjacent, at fence(), and at drain().
//  - An error is remembered: every later call returns it. drain() waits all the same.
//  - wait_for() takes an Event.
// Thread rule: one thread. Its end waits for what is in flight.
Result<std::unique_ptr<memory::Copier>> make_copier(std::shared_ptr<Device> device, const CopierOptions& options = {});

}  // namespace infercluster::gpu
