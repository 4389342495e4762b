// SPDX-License-Identifier: Apache-2.0
// Saves in directories of the caller's choice, by ranks whose talk the caller carries: torch's distributed checkpoint.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/part.h"
#include "checkpoint/snapshot.h"
#include "io/drain_governor.h"

namespace infercluster::checkpoint {

// Which save of a directory: what the first rank tells the others.
struct SaveTicket {
  std::uint64_t epoch = 0;
  std::string save_id;
};

struct SavedPart {
  manifest::IndexReference index;
  std::uint64_t bytes = 0;  // of its segment
  PartReport report;
  io::DrainGovernor::Report throttled;  // since the saver was made, on this device
};

// Thread-safe, and keeps nothing between calls but memory: begin(), write() and commit() of one save may be in
// different processes. A directory is that of the checkpoint itself, and is there.
class PartSaver {
 public:
  struct Options {
    // State passes through so much memory on its way, which is kept from save to save; 0: what is usual. It may not
    // change until write() returns.
    std::uint64_t buffer_bytes = 0;
    // How long write() and commit() wait until what the first rank made can be seen here (attribute caches).
    std::chrono::nanoseconds visible_deadline = std::chrono::minutes(5);
    checkpoint::Options::Foreground foreground = {};  // that the writing gives way to
    io::FileCalls* calls = nullptr;                   // null: the operating system's
  };
  explicit PartSaver(const Options& options);

  // By the first rank, before the others know. See begin_beside().
  Result<SaveTicket> begin(const std::string& directory, Exists exists);
  // By each rank: all of `state`, as writer `node` of `world`. On error it removes what it wrote.
  // `max_write_rate`: bytes per second of this call; 0: no limit.
  Result<SavedPart> write(const std::string& directory, const SaveTicket& ticket, std::uint64_t node,
                          std::uint64_t world, const State& state, std::uint64_t max_write_rate = 0);
  // By the first rank, once all have written: the checkpoint is durable when it returns. `held`: what all wrote
  // together; holes and overlaps are refused, by the tensor's name. Then what was there before goes.
  Status commit(const std::string& directory, const SaveTicket& ticket, std::uint64_t world,
                std::vector<manifest::IndexReference> parts, const Pieces& held);
  // By the first rank, after a failure, when nobody writes any more.
  Status discard(const std::string& directory, const SaveTicket& ticket);

 private:
  Result<Begun> join(const std::string& directory, const SaveTicket& ticket);
  Result<io::DrainGovernor*> drain_of(const io::Directory& directory);

  io::FileCalls& calls_;
  WriteOptions write_;
  std::chrono::nanoseconds visible_deadline_;
  SnapshotArenas buffers_;
  const checkpoint::Options::Foreground foreground_;
  std::mutex mutex_;
  // By device (st_dev), kept from save to save: each goes on from the rate that served last. Guarded by mutex_
  std::map<std::uint64_t, std::unique_ptr<io::DrainGovernor>> drains_;
};

}  // namespace infercluster::checkpoint
