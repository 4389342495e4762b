// SPDX-License-Identifier: Apache-2.0
// The public C++ API of what people do with checkpoints that are there: list, look at, verify, compare, export, prune.
// Errors are values (base/result.h). All functions are thread-safe. INFERCLUSTER_BACKEND and INFERCLUSTER_DIRECT say
// how files are read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/compare.h"
#include "checkpoint/export.h"
#include "checkpoint/listing.h"
#include "checkpoint/restore.h"
#include "checkpoint/retention.h"
#include "checkpoint/tier_drain.h"

namespace infercluster::checkpoint {

// The steps of a root, those that are no checkpoints too. Error invalid_argument: it is one checkpoint itself.
Result<Listing> list(const std::string& root);

// The checkpoint of that step in `place`; without a step the latest that is verified. `place` may also be the directory
// of one checkpoint, whatever its name. Errors: not_found, and those of Checkpoint::open.
Result<std::unique_ptr<Checkpoint>> open_at(const std::string& place, std::optional<std::uint64_t> step);

// Reads every byte of every segment and checks every block. A bad or missing file does not stop it.
struct SegmentVerdict {
  std::string path;
  std::uint64_t bytes = 0;           // that were read
  std::string mode;                  // how: "direct", "buffered" or "resident", which is from the page cache
  std::uint64_t bad_blocks = 0;      // of manifest::kBlockBytes
  std::optional<Error> first_error;  // names tensor and offset of the first bad block; none: the segment is good
};
struct VerifyReport {
  std::vector<SegmentVerdict> segments;
  std::uint64_t bytes = 0;
  double seconds = 0;
  [[nodiscard]] bool good() const;
};
// Errors: cancelled, or that nothing could be read at all; whatever is bad stands in the report.
Result<VerifyReport> verify(const Checkpoint& checkpoint, const WorkProgress& progress = {});

// The options that the environment gives for reading.
Result<RestoreOptions> restore_options_from_environment();

struct Selection {
  std::vector<std::string> patterns;  // of stored names; empty: all
  std::string prefix;                 // only names that begin with it, which it is taken off
};
// By exported name. Error not_found: a pattern or the prefix fits no tensor; invalid_argument: nothing of a name is
// left.
Result<std::vector<ExportedTensor>> select(const Checkpoint& checkpoint, const Selection& selection);
Result<ExportReport> export_to(const Checkpoint& checkpoint, const std::vector<ExportedTensor>& tensors,
                               const std::string& destination, const ExportOptions& options);

// Brings a checkpoint from the root of one tier to that of the next, where it becomes durable by a commit of its own.
// An interrupted drain is gone on with by the next call for the same step. Errors: as drain_step.
struct DrainRequest {
  std::optional<std::uint64_t> step = {};  // nothing: the latest that is verified in `from`
  Exists exists = Exists::error;
  std::uint64_t max_write_rate = 0;  // bytes per second; 0: no limit
  WorkProgress progress = {};
};
Result<DrainReport> drain(const std::string& from, const std::string& to, const DrainRequest& request);

// Removes steps that choose_to_remove() gave; each is renamed away first. All are tried; one that somebody else has
// removed meanwhile is no error.
struct Removal {
  std::uint64_t step = 0;
  std::optional<Error> error;
};
Result<std::vector<Removal>> remove(const std::string& root, const std::vector<std::uint64_t>& steps);

}  // namespace infercluster::checkpoint
