// SPDX-License-Identifier: Apache-2.0
// The commit record of a checkpoint: the small file that makes a directory a checkpoint. Pure: no I/O.
//
// Format "infercluster.checkpoint", version 1: one JSON object. Its last member, "crc32c", is the CRC32C (8 lower-case
// hexadecimal digits) of the object without it, written compactly in the same order; whitespace does not count.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace infercluster::manifest {

inline constexpr std::uint64_t kFormatVersion = 1;
inline constexpr std::uint64_t kCommitBytesMax = std::uint64_t{16} << 20;

// An index file, as the commit record names it.
struct IndexReference {
  std::string name;  // a plain file name beside the commit record
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;  // of the whole index file

  friend bool operator==(const IndexReference&, const IndexReference&) = default;
};

struct Commit {
  std::uint64_t step = 0;
  std::uint64_t epoch = 0;  // of this step: grows with every replacement
  std::string save_id;      // 16 hexadecimal digits, the same in every file of one save
  std::uint64_t world = 0;  // ranks that saved
  std::string plan_hash;    // 32 hexadecimal digits
  std::vector<IndexReference> indexes;

  friend bool operator==(const Commit&, const Commit&) = default;
};

// Errors: corrupt (not such a record, a member missing or odd, checksum), unsupported for a newer version. The path is
// the caller's to add.
Result<Commit> parse_commit(std::string_view text);
// Refuses what parse_commit would refuse.
Result<std::string> build_commit(const Commit& commit);

}  // namespace infercluster::manifest
