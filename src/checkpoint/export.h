// SPDX-License-Identifier: Apache-2.0
// Writes tensors of a checkpoint as a stock Hugging Face repository of safetensors files, whole tensors in each,
// whatever boxes they were saved in. Every byte that is read is checked; nothing half written gets its final name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "checkpoint/compare.h"
#include "checkpoint/export_plan.h"
#include "checkpoint/restore.h"
#include "io/files.h"

namespace infercluster::checkpoint {

enum class OtherFiles : std::uint8_t {
  refuse,  // the destination must be empty, or not be there
  allow,   // it may hold other files (a config, a tokenizer), but no weights
};

struct ExportOptions {
  std::uint64_t shard_bytes = 5'000'000'000;  // of the tensors of a file
  std::uint64_t window_bytes = 256 * kMiB;    // of tensors in memory at once; the reads in flight come on top
  OtherFiles other_files = OtherFiles::refuse;
  RestoreOptions restore;
  WorkProgress progress;  // may be empty
};

struct ExportReport {
  struct File {
    std::string path;
    std::uint64_t bytes = 0;
    std::uint64_t tensors = 0;
  };
  std::vector<File> files;  // of weights
  std::string index_path;   // empty: a single file needs none
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;         // of them
  std::uint64_t bytes_read = 0;    // whole checksum blocks
  std::uint64_t memory_bytes = 0;  // of the window, at its largest
};

// A destination that is not there is written under another name beside it, and renamed when it is whole and durable; in
// one that is there each file gets its name at the end, the index last. On error what was written is removed again.
// Errors: invalid_argument (the destination holds files), not_found (its parent is not there), corrupt, and what the
// file system says.
Result<ExportReport> export_to(io::FileCalls& calls, const Checkpoint& checkpoint,
                               const std::vector<ExportedTensor>& tensors, const std::string& destination,
                               const ExportOptions& options);

}  // namespace infercluster::checkpoint
