// SPDX-License-Identifier: Apache-2.0
// One restore by all ranks of a job: each block that ranks of a node want is read and checked by one of them, once, and
// handed to the others through memory that they share.
#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "checkpoint/restore.h"
#include "exchange/exchange.h"

namespace infercluster::checkpoint {

struct Together {
  exchange::Exchange& ranks;  // of this restore alone: an abort ends it
  exchange::Deadline met;     // until all ranks have come
  exchange::Deadline done;    // until all have what they want
};

// Of one node are ranks for which this is equal; it is empty for one who reads for himself.
std::string neighbourhood();

// All ranks call it, for the same save; each has targets of its own, or none. It succeeds on all ranks, or fails on all
// with the first cause: a refusal by Checkpoint::restore(), a process that ended, a deadline.
Result<RestoreReport> restore_together(const Checkpoint& checkpoint, std::span<const Target> targets,
                                       const RestoreOptions& options, const Together& together);

}  // namespace infercluster::checkpoint
