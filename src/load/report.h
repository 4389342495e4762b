// SPDX-License-Identifier: Apache-2.0
// What happened in a load, and where its time went.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace infercluster::load {

struct FileReport {
  std::string path;
  std::uint64_t bytes = 0;   // bytes of it that were wanted
  std::string mode;          // "direct", "buffered", "resident", "gds"; "none" when nothing of it was read
  std::string reason;        // why this mode
  std::string verification;  // "seal", "sha256", or "unverified: WHY"
};

// Seconds that the job waited, by cause; together they are the job's seconds.
struct Waited {
  double storage = 0;  // nothing else to do: reads were out
  double memory = 0;   // for memory to be populated, or for the budget or window
  double verify = 0;   // checking checksums
  double other = 0;    // all else: planning, submitting, moving
};

struct Report {
  std::uint64_t bytes = 0;  // of the tensors as delivered
  std::uint64_t tensors = 0;
  double seconds = 0;                 // from the call to the last byte delivered, opening included
  std::string backend;                // "io_uring" or "threads"
  std::string backend_reason;         // why not io_uring; empty otherwise
  std::uint64_t peak_host_bytes = 0;  // memory of ours at its peak: tensors we allocated and working memory
  std::uint64_t working_bytes = 0;    // of that, beyond the tensors
  std::vector<FileReport> files;
  Waited waited;
  std::uint64_t moved_bytes = 0;    // copied by the host after they had landed
  std::uint64_t device_copies = 0;  // from a ring to where tensors live on a device; adjacent ones go as one
  std::uint64_t device_copy_bytes = 0;
  std::uint64_t gds_bytes = 0;   // of bytes_read: by GPUDirect Storage, without passing through host memory
  std::uint64_t bytes_read = 0;  // from storage or page cache
  std::uint64_t requests = 0;
  std::uint64_t retries = 0;
  std::uint64_t page_cache_fill_bytes = 0;  // asked for behind the load
  std::uint64_t donated_blocks = 0;         // stream: blocks that a consumer kept a tensor of
  std::vector<std::string> notices;         // what a user should know: fallbacks, warnings of the index
  bool on_double = false;                   // the GPU is a stand-in for tests: no rate is shown

  // 0: there is none to show.
  [[nodiscard]] double gib_per_s() const {
    return seconds > 0 && !on_double ? static_cast<double>(bytes) / seconds / (1024.0 * 1024 * 1024) : 0;
  }
};

}  // namespace infercluster::load
