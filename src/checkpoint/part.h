// SPDX-License-Identifier: Apache-2.0
// The part of a checkpoint that one rank writes: a segment and its index.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/directory.h"
#include "checkpoint/layout.h"
#include "checkpoint/references.h"
#include "checkpoint/segment_writer.h"
#include "manifest/commit.h"
#include "manifest/index.h"

namespace infercluster::checkpoint {

struct PartReport {
  bool direct = false;  // the page cache was left out
  std::string layout;   // how the segment lies on a parallel file system; empty: on no such one
  manifest::Index index;
  Linked linked;
};

// Durable when it returns: segment (none where `layout` has no chunks), links, index, and the directory's names.
// `node`: the writer's number, its own in this save. `next`, `written`: see write_segment().
Result<manifest::IndexReference> write_part(io::FileCalls& calls, const Begun& begun, std::uint64_t node,
                                            const Layout& layout, const References& references,
                                            const manifest::Metadata& metadata, const NextWindow& next,
                                            const WriteOptions& options, std::atomic<std::uint64_t>& written,
                                            PartReport& report);
// After a failure: removes what write_part() made, unless it is committed. What cannot be removed is a warning.
void remove_part(io::FileCalls& calls, const Begun& begun, std::uint64_t node, const References& references);

// Of parts that are durable, for commit_save().
manifest::Commit commit_of(const Begun& begun, std::uint64_t world, std::string plan_hash,
                           std::vector<manifest::IndexReference> parts);

}  // namespace infercluster::checkpoint
