// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "checkpoint/checkpointer.h"
#include "checkpoint/segment_writer.h"
#include "io/drain_governor.h"

namespace infercluster::checkpoint {

// Of the signals that are asked for, for writes to `device` (st_dev); null: there are none.
std::unique_ptr<io::DrainGovernor> make_drain_governor(const Options::Foreground& foreground, std::uint64_t device);

// What it has done so far; all zero where there is none.
io::DrainGovernor::Report report_of(const WriteOptions& options);
// Adds what happened between the two to a save's report.
void add_throttling(SaveReport& report, const io::DrainGovernor::Report& before,
                    const io::DrainGovernor::Report& after);

}  // namespace infercluster::checkpoint
