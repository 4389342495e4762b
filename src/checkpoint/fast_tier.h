// SPDX-License-Identifier: Apache-2.0
// The tier above the root: storage of a node, such as its NVMe. FAST/rank-R/step-N is what rank R wrote of step N, with
// a commit of its own that names R's index alone and bears the id of the save. What such parts count for, the root
// says: it has the save's mark before any of them is committed, and loses it when it has the save, or a later one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/directory.h"
#include "checkpoint/restore.h"
#include "io/files.h"

namespace infercluster::checkpoint {

// A part that is committed and whole.
struct FastPart {
  std::uint64_t step = 0;
  std::uint64_t rank = 0;  // that wrote it
  std::uint64_t world = 0;
  std::string save_id;
  std::string plan_hash;
};
std::string encode(const std::vector<FastPart>& parts);
Result<std::vector<FastPart>> decode_parts(std::string_view bytes);

// Makes the directory where only that is missing.
Result<io::Directory> open_fast_tier(io::FileCalls& calls, const std::string& path);
Result<io::Directory> open_rank_directory(io::FileCalls& calls, const io::Directory& fast, std::uint64_t rank);

// All that can be seen from here, of any rank. What cannot be used is a warning.
Result<std::vector<FastPart>> list_parts(io::FileCalls& calls, const io::Directory& fast);
// Errors: not_found (also when another save's part is there), corrupt.
Result<OpenPart> open_part(io::FileCalls& calls, const io::Directory& fast, std::uint64_t rank, std::uint64_t step,
                           const std::string& save_id);
// Removes a part that is of no use, committed or not; that of another save stays.
Status remove_own_part(io::FileCalls& calls, const io::Directory& rank_directory, const Begun& begun);

// An error when its file system has no room for so many bytes more.
Status check_room(const io::Directory& directory, std::uint64_t bytes);

}  // namespace infercluster::checkpoint
