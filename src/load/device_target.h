// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "base/result.h"
#include "load/options.h"
#include "load/target.h"

namespace infercluster::load {

// One CUDA device. Opens its context, and no other's. Errors: unsupported (no driver, with the reason),
// invalid_argument (no such device).
Result<std::shared_ptr<Target>> open_device_target(const DeviceOptions& options);

}  // namespace infercluster::load
