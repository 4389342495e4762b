// SPDX-License-Identifier: Apache-2.0
// The part of a save that its caller does not wait for: write, agree, commit, prune.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/image_windows.h"
#include "checkpoint/layout.h"
#include "checkpoint/segment_writer.h"
#include "checkpoint/snapshot.h"

namespace infercluster::checkpoint {

// What all saves of a checkpointer share.
struct Shared {
  io::FileCalls* calls = nullptr;
  io::Directory root;
  Options options;
  WriteOptions write;
  int rank = 0;
};

struct SaveJob {
  std::uint64_t number = 0;  // of the checkpointer's saves, the same on all ranks
  std::shared_ptr<Save> save;
  SaveReport report;
  Clock::TimePoint started;
  Begun begun;  // rank 0 has the directory open; the others open it in run_save()
  std::unique_ptr<exchange::Exchange> ranks;
  std::string plan_hash;
  Layout layout;
  manifest::Metadata metadata;
  std::shared_ptr<ImageWindows> image;  // null where this rank writes nothing
};

// Returns the error that the save failed with. Either way job.save says how it ended.
Status run_save(const Shared& shared, SaveJob& job);

// What a rank tells the others when a save begins.
struct Opening {
  std::uint64_t step = 0;
  Exists exists = Exists::error;
  std::uint64_t failed_number = 0;  // an earlier save that failed, and nobody was told yet; 0: none
  std::string failure;              // its cause, encoded
  std::uint64_t epoch = 0;          // rank 0's
  std::string save_id;              // rank 0's
  bool pieces_unchanged = false;    // since the last save on which all agreed; `pieces` is empty then
  std::string pieces;               // encoded
};
std::string encode(const Opening& opening);
Result<Opening> decode_opening(std::string_view bytes);

}  // namespace infercluster::checkpoint
