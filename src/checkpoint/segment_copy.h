// SPDX-License-Identifier: Apache-2.0
// Copies a part of a checkpoint, its segments and their index, from one directory to another: by extents, each of them
// durable before the next begins, so that whoever is interrupted goes on with the extent that he was at.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "base/result.h"
#include "base/units.h"
#include "checkpoint/directory.h"
#include "checkpoint/segment_writer.h"
#include "manifest/commit.h"
#include "manifest/index.h"

namespace infercluster::checkpoint {

struct CopyOptions {
  std::uint64_t extent_bytes = kGiB;  // synced and noted at once; a multiple of manifest::kBlockBytes
  WriteOptions write = {};            // its threads read too: each has one buffer of request_bytes
  // Told the bytes of the segments that are written or were there; false ends the copy (cancelled). By one thread.
  std::function<bool(std::uint64_t bytes)> progress = {};
};

struct CopyReport {
  std::uint64_t bytes = 0;          // of the segments
  std::uint64_t bytes_resumed = 0;  // of them: an earlier copy had made them durable
  bool read_direct = true;          // the page cache was left out of each read that can be
  bool write_direct = true;
};

// Copies what `index` names from `from` to a save of the same id that has begun in `to`. What was noted there as
// durable stays, and is not read again. Each block is checked before it is written: a wrong byte ends the copy, with
// error corrupt, and what was copied by then may stay for the next try. Two copies of one save at once harm nothing:
// they write the same bytes to the same places. Success: all of it is durable, the names too; the index bears the epoch
// and the names that it has in `to`.
Result<manifest::IndexReference> copy_part(io::FileCalls& calls, const io::Directory& from,
                                           const manifest::Index& index, const Begun& to, const CopyOptions& options,
                                           CopyReport& report);

}  // namespace infercluster::checkpoint
