// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "checkpoint/checkpointer.h"
#include "io/drain_governor.h"

namespace infercluster::checkpoint {

// Of the signals that are asked for, for writes to `device` (st_dev); null: there are none.
std::unique_ptr<io::DrainGovernor> make_drain_governor(const Options::Foreground& foreground, std::uint64_t device);

}  // namespace infercluster::checkpoint
