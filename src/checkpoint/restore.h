// SPDX-License-Identifier: Apache-2.0
// Reads checkpoints: any boxes of any tensors, whatever boxes they were saved in. Every byte that is used was checked
// against the checksum that was taken before it was written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/box_copy.h"
#include "checkpoint/device_copies.h"
#include "checkpoint/plan.h"
#include "io/backend.h"
#include "io/files.h"
#include "io/source.h"
#include "manifest/commit.h"
#include "manifest/index.h"

namespace infercluster::checkpoint {

struct StoredTensor {
  safetensors::Dtype dtype = safetensors::Dtype::u8;
  std::vector<std::uint64_t> shape;
  struct Part {
    std::size_t index = 0;  // of Checkpoint::indexes()
    std::size_t chunk = 0;  // of its chunks
  };
  std::vector<Part> parts;
};

// Memory for a box of a tensor. On a device it is contiguous, or rows at equal distances.
struct Target {
  Piece piece;
  std::byte* data = nullptr;  // the box's first element; on a device its address there
  Strides strides = {};
  int device = -1;  // the CUDA device's ordinal; -1: the host
};

struct RestoreOptions {
  io::BackendOptions backend;
  io::DirectPolicy direct = io::DirectPolicy::automatic;
  DeviceStreams streams = {};  // copies to devices begin behind the work that is queued there
};

struct RestoreReport {
  std::uint64_t bytes_wanted = 0;     // of all targets
  std::uint64_t bytes_read = 0;       // by this rank from storage: whole checksum blocks, each once
  std::uint64_t bytes_received = 0;   // read by other ranks of the node, for this one too
  std::uint64_t segments = 0;         // that were opened
  std::uint64_t node_ranks = 1;       // that shared their reads
  std::uint64_t index_bytes = 0;      // of the indexes that this rank read to know where all is
  std::uint64_t node_bytes_read = 0;  // by all of them together
  double seconds = 0;
};

// What one rank wrote, in a directory of its own.
struct OpenPart {
  io::Directory directory;
  manifest::Commit commit;  // names this part's index alone
  manifest::Index index;
};

// A committed checkpoint with its indexes. Immutable; thread-safe.
class Checkpoint {
 public:
  // Errors: not_found (no such step, or without a commit), corrupt, unsupported (a newer format).
  static Result<std::unique_ptr<Checkpoint>> open(io::FileCalls& calls, const std::string& root, std::uint64_t step);
  // Of all ranks' parts on the fast tier, which lie in a directory each; of one save.
  static Result<std::unique_ptr<Checkpoint>> open_parts(const std::string& fast, std::vector<OpenPart> parts);
  // As much of it as rank `rank` of `world` needs for what it saved, where it was saved by as many and says whose
  // indexes that takes; else all of it.
  static Result<std::unique_ptr<Checkpoint>> open_own(io::FileCalls& calls, const std::string& root, std::uint64_t step,
                                                      std::uint64_t rank, std::uint64_t world);
  // In a directory of any name.
  static Result<std::unique_ptr<Checkpoint>> open_directory(io::FileCalls& calls, const io::Directory& directory);

  [[nodiscard]] const manifest::Commit& commit() const { return commit_; }
  [[nodiscard]] const std::vector<manifest::Index>& indexes() const { return indexes_; }  // by rank that saved
  [[nodiscard]] const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  // Otherwise indexes that were not read are empty, and tensors may lack parts or be missing; restore() refuses what it
  // does not know the place of, which need not mean that it is not there.
  [[nodiscard]] bool is_whole() const { return is_whole_; }
  [[nodiscard]] std::uint64_t index_bytes() const { return index_bytes_; }  // of those that were read
  [[nodiscard]] const std::string& path() const { return path_; }
  // Of a segment of the index with this position.
  [[nodiscard]] std::string path_of(std::size_t index, const manifest::Segment& segment) const {
    return (part_paths_.empty() ? path_ : part_paths_[index]) + "/" + segment.name;
  }

  // Reads what the targets need and no more, each byte once; it is all there when this returns. All missing tensors,
  // and all of another dtype or shape, are named in one error, before anything is read. On a later error what the
  // targets hold is undefined.
  Result<RestoreReport> restore(std::span<const Target> targets, const RestoreOptions& options) const;
  // Reads all of it, and checks every block: is what was saved still there? The first that is not is the error.
  Result<RestoreReport> verify(const RestoreOptions& options) const;
  // Whether all parts of the targets are known; always so where it is whole and has such tensors.
  [[nodiscard]] bool covers(std::span<const Target> targets) const;
  // Whether restore() would refuse the targets before it reads anything. Bytes that they want.
  Result<std::uint64_t> check(std::span<const Target> targets) const;

 private:
  Checkpoint() = default;
  Status gather_tensors();

  std::string path_;
  std::vector<std::string> part_paths_;  // by index; empty: all are in path_
  manifest::Commit commit_;
  std::vector<manifest::Index> indexes_;
  std::map<std::string, StoredTensor> tensors_;
  bool is_whole_ = true;
  std::uint64_t index_bytes_ = 0;
};

}  // namespace infercluster::checkpoint
