// SPDX-License-Identifier: Apache-2.0
// The part of a save that its caller does not wait for: write, agree, commit, prune.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/image_windows.h"
#include "checkpoint/layout.h"
#include "checkpoint/references.h"
#include "checkpoint/segment_writer.h"
#include "checkpoint/snapshot.h"
#include "manifest/commit.h"

namespace infercluster::checkpoint {

// The fast tier of this rank.
struct FastPlace {
  io::Directory directory;       // of all ranks that have it
  io::Directory rank_directory;  // of this one
  WriteOptions write;
  std::unique_ptr<std::mutex> pruning = std::make_unique<std::mutex>();  // held by who prunes, or begins a save here
};

// What all saves of a checkpointer share.
struct Shared {
  io::FileCalls* calls = nullptr;
  io::Directory root;
  Options options;
  WriteOptions write;
  std::optional<FastPlace> fast;
  int rank = 0;
};

struct SaveJob {
  std::uint64_t number = 0;  // of the checkpointer's saves, the same on all ranks
  std::shared_ptr<Save> save;
  SaveReport report;
  Clock::TimePoint started;
  Begun begun;                // in the root; rank 0 has the directory open; the others open it in run_save()
  std::optional<Begun> fast;  // on the fast tier, once all ranks agreed to use it
  std::shared_ptr<exchange::Exchange> ranks;
  std::string plan_hash;
  std::shared_ptr<Layout> layout;    // its chunks' generations come with the last window of the image
  std::vector<std::uint64_t> pages;  // of each of the layout's chunks: HostPiece::page
  References references;
  manifest::Metadata metadata;
  std::shared_ptr<ImageWindows> image;  // null where this rank writes nothing
  // Called before `save` says so.
  std::function<void(const Error&)> on_failure;
  std::function<void(std::shared_ptr<const DurablePart>)> on_durable;
};

// What a rank tells rank 0 when its files are durable.
struct Root {
  manifest::IndexReference index;
  std::string plan_hash;
};
std::string encode(const Root& root);
Result<Root> decode_root(std::string_view bytes);

// job.save says how it ended. True: it is durable on the fast tier, and waits for its drain (drain_job.h).
bool run_save(const Shared& shared, SaveJob& job);

// Frees space as the reads beside it allow; refers to `options`.
FreePace pace_of(const WriteOptions& options);

// For ranks other than 0: opens the save's directory in the root.
Status join_root(const Shared& shared, Begun& begun, exchange::Exchange& ranks, exchange::Deadline deadline);
// After rank 0's commit: whether there is one.
Status agree_on_commit(const Shared& shared, const Begun& begun, exchange::Exchange& ranks,
                       exchange::Deadline deadline);

}  // namespace infercluster::checkpoint
