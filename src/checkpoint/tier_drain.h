// SPDX-License-Identifier: Apache-2.0
// Brings a checkpoint from one tier to the next, as from a node's NVMe to the parallel file system: each tier has the
// checkpoint with a commit of its own, and it counts on the lower one only when that is there.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"
#include "checkpoint/directory.h"
#include "checkpoint/segment_copy.h"
#include "io/files.h"

namespace infercluster::checkpoint {

struct DrainOptions {
  // A step that the lower tier has of another save. `replace`: it stays until the new one is durable.
  Exists exists = Exists::error;
  CopyOptions copy = {};  // its `progress` is set here
  // Told once per extent, of all segments; false ends the drain (cancelled).
  std::function<bool(std::uint64_t bytes_done, std::uint64_t bytes_total)> progress = {};
};

struct DrainReport {
  std::uint64_t step = 0;
  std::uint64_t epoch = 0;   // on the lower tier
  bool was_durable = false;  // there was nothing to do
  CopyReport copied = {};
  double seconds = 0;
};

// `step` of the root `from` becomes a durable checkpoint of the root `to`, all ranks' parts of it. After a crash at any
// point, the next call for the same save goes on with the extent that was on its way; until it is committed, a job's
// first save into `to` sweeps it away as it does with any interrupted save, and then all of it is copied again. Errors:
// not_found (no commit there), corrupt (a wrong byte: nothing is committed), invalid_argument (another save of the step
// is in `to`), and those of the file system. On an error what was copied stays for the next try.
Result<DrainReport> drain_step(io::FileCalls& calls, const io::Directory& from, std::uint64_t step,
                               const io::Directory& to, const DrainOptions& options);

}  // namespace infercluster::checkpoint
