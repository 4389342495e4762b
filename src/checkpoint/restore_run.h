// SPDX-License-Identifier: Apache-2.0
// Runs a restore's reads: a ring of windows over the engine; each is checked, then copied to the targets. What other
// ranks of the node want too is read into memory that they share, checked there once, and copied from there by all.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/units.h"
#include "checkpoint/node_plan.h"
#include "checkpoint/restore.h"
#include "checkpoint/restore_plan.h"
#include "checkpoint/shared_ring.h"
#include "memory/span.h"

namespace infercluster::checkpoint {

inline constexpr std::uint64_t kWindowBytes = 4 * kMiB;

// This rank's part of a node's plan.
struct NodeShare {
  const NodePlan* plan = nullptr;
  std::size_t self = 0;
  const SharedRing* ring = nullptr;  // null: nothing is shared
  memory::Span ring_memory;
  Clock::TimePoint deadline;  // until the others have done their part
  // Called every now and then; an error ends the run.
  std::function<Status()> watch;
};

// `segments` are what plan_reads() gave. `share` null: all of it is read by this rank alone.
Result<RestoreReport> run_reads(const Checkpoint& checkpoint, std::vector<SegmentReads> segments,
                                const RestoreOptions& options, const NodeShare* share);

}  // namespace infercluster::checkpoint
