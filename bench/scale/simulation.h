// SPDX-License-Identifier: Apache-2.0
// One save of a whole job in one process, by the code that each rank runs: all but the bytes and the waiting. What
// ranks say to each other is encoded as it would travel, and counted.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "checkpoint/plan.h"

namespace infercluster::scale {

struct Job {
  std::uint64_t world = 1;
  std::function<checkpoint::Pieces(std::uint64_t rank)> pieces;
  std::uint64_t indexes = 1;  // that are built and read, for an estimate of all
};

// What a rank sends and receives over the store, in values; without those who look and find nothing yet.
struct Traffic {
  std::uint64_t messages = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
};

struct Figures {
  std::uint64_t world = 0;
  std::uint64_t groups = 0;
  std::uint64_t pieces = 0;  // that all ranks hold
  std::uint64_t chunks = 0;  // that all ranks write
  std::uint64_t bytes = 0;   // of them
  double balance = 0;        // the most that a rank writes, to the average
  // Processor time. Planning: from a state to the layout of the segment, all that the caller waits for.
  double rank_seconds_max = 0;
  double rank_seconds_median = 0;
  double coordinator_seconds = 0;  // rank 0, its own part of it and the one for all
  double seconds_per_chunk = 0;    // all ranks together
  double reuse_seconds = 0;        // a rank of the largest group when nothing has changed
  // Heap memory beyond the caller's state.
  std::uint64_t rank_bytes_peak = 0;
  std::uint64_t rank_bytes_kept = 0;
  std::uint64_t coordinator_bytes_peak = 0;
  // A save with a new plan, and one with the plan that stands.
  Traffic rank_new, coordinator_new;  // of the rank with the most
  Traffic rank_again, coordinator_again;
  // What lies on disk.
  std::uint64_t commit_bytes = 0;
  double commit_build_seconds = 0;
  double commit_parse_seconds = 0;
  std::uint64_t index_bytes_max = 0;
  std::uint64_t index_bytes = 0;       // of all indexes, estimated from some
  double index_parse_seconds = 0;      // of all of them: what opening the checkpoint takes a reader
  std::uint64_t index_heap_bytes = 0;  // and the memory that he then holds
  // Of the ranks whose indexes one needs for what it held itself; none where it does not know.
  std::uint64_t own_indexes_max = 0;
  double own_indexes_mean = 0;
};

Result<Figures> simulate(const Job& job);

}  // namespace infercluster::scale
