// SPDX-License-Identifier: Apache-2.0
// The way of a save from the fast tier to the root, by all ranks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "checkpoint/save_job.h"

namespace infercluster::checkpoint {

struct DrainJob {
  std::uint64_t number = 0;  // of the checkpointer's saves; 0: an earlier job's
  std::shared_ptr<Save> save;
  SaveReport report;
  Clock::TimePoint started;  // of the save
  Begun begun;               // in the root; rank 0 has the directory open
  std::shared_ptr<exchange::Exchange> ranks;
  std::string plan_hash;
  std::uint64_t world = 0;           // that saved
  std::vector<std::uint64_t> parts;  // that this rank brings: by the rank that wrote them
  std::function<void(const Error&)> on_failure;
};

// job.save says how it ended. On an error what was copied stays, and a later job goes on with it.
void run_drain(const Shared& shared, DrainJob& job);

}  // namespace infercluster::checkpoint
