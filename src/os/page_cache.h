// SPDX-License-Identifier: Apache-2.0
// The page cache: what of a file is in it, filling it, and dropping a file from it.
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace infercluster::os {

struct Residency {
  double fraction = 0;  // of the asked range, 0 to 1
  std::string method;   // "cachestat", "nowait probe" (RWF_NOWAIT at up to 64 seeded offsets), or "unknown"
};

// Residency of [offset, offset + length). By cachestat(2); where that is refused (EPERM for files of others, ENOSYS), by
// RWF_NOWAIT one-byte reads, which do not start I/O. Never mincore: it says "resident" for every file of others.
Residency residency_of(const Fd& fd, std::uint64_t offset, std::uint64_t length);

// Drops the file's clean pages (posix_fadvise DONTNEED). Dirty pages stay: sync first.
Status drop_page_cache(const Fd& fd);

// Starts reading [offset, offset + length) into the page cache (readahead); may block while requests are queued.
Status fill_page_cache(const Fd& fd, std::uint64_t offset, std::uint64_t length);

}  // namespace infercluster::os
