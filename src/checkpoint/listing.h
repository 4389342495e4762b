// SPDX-License-Identifier: Apache-2.0
// What a folder of checkpoints holds, and which of it may go, for a person who looks at it. Reads no tensor data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/retention.h"
#include "io/files.h"

namespace infercluster::checkpoint {

struct ListedStep {
  std::uint64_t step = 0;
  std::uint64_t bytes = 0;  // of all files in its directory
  bool durable = false;     // it has a valid commit record
  // And every checksum that was taken from memory before the write is there: check_indexes() finds all of it whole.
  bool verified = false;
  std::uint64_t epoch = 0;  // as the commit record says; so below
  std::uint64_t world = 0;
  std::optional<std::int64_t> committed_ns;  // when, since 1970
  bool stock_dcp = false;                    // torch's own writer saved it; nothing else of it is known
  // What keeps it from being verified. None and not durable either: there is no commit record; it is being saved, or
  // its save was interrupted.
  std::optional<Error> problem;
};

struct Trash {
  std::string name;  // of a directory of the root, on its way out
  std::uint64_t bytes = 0;
};

struct Listing {
  std::vector<ListedStep> steps;        // ascending
  std::optional<std::uint64_t> latest;  // the highest one that is verified: what a load takes
  std::vector<Trash> trash;             // by name

  [[nodiscard]] const ListedStep* find(std::uint64_t step) const;  // nullptr: not there
};

Result<Listing> list_root(io::FileCalls& calls, const io::Directory& root);

// Of the verified steps those that go when somebody asks for `retention`: neither `latest` nor the one that was
// committed last, which after a rollback is another, is among them. Pure.
std::vector<std::uint64_t> choose_to_remove(const Listing& listing, const Retention& retention);

}  // namespace infercluster::checkpoint
