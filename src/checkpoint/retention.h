// SPDX-License-Identifier: Apache-2.0
// Which checkpoints stay.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "base/result.h"
#include "checkpoint/directory.h"
#include "io/files.h"

namespace infercluster::checkpoint {

struct Retention {
  std::uint64_t keep = 3;        // the newest so many; 0: all
  std::uint64_t keep_every = 0;  // and those whose step it divides; 0: none
};

// Of `verified` (ascending) the steps that go. Pure. `newest` stays whatever its number: after a rollback it is not the
// highest.
std::vector<std::uint64_t> choose_to_remove(const std::vector<std::uint64_t>& verified, std::uint64_t newest,
                                            const Retention& retention);

// After `newest` became durable. Counts only what is committed and whole by read_indexes(), and removes nothing else,
// nor what is in `busy`. The first error, after all were tried.
Status prune(io::FileCalls& calls, const io::Directory& root, std::uint64_t newest, const Retention& retention,
             const FreePace& pace = nullptr, const std::set<std::uint64_t>& busy = {});

// What earlier jobs left: trash, and directories of steps without a commit, but for those in `busy`. Each is a warning.
Status sweep(io::FileCalls& calls, const io::Directory& root, const std::set<std::uint64_t>& busy);

}  // namespace infercluster::checkpoint
