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
  std::string method;   // "cachestat", "nowait probe" (RWF_NOWAIT), or "unknown"
};

// Residency of what [offset, offset + length) has within the file; "unknown" when that is nothing. By cachestat(2);
// where that is refused (EPERM for files that the caller neither owns nor can write, ENOSYS before Linux 6.5), by
// probing. Never mincore: it says "resident" for every file of others.
Residency residency_of(const Fd& fd, std::uint64_t offset, std::uint64_t length);

// The second way alone: RWF_NOWAIT one-byte reads, one at a random place in each of up to 64 equal parts. A probe waits
// for no I/O, but makes newer kernels start reading the page that it asked for.
Residency residency_by_probing(const Fd& fd, std::uint64_t offset, std::uint64_t length);

// Drops the file's clean pages (posix_fadvise DONTNEED). Dirty pages and pages that someone has mapped stay: sync
// first.
Status drop_page_cache(const Fd& fd);

// Starts reading what [offset, offset + length) has within the file into the page cache (readahead); may block while
// requests are queued. The pages come in later: residency_of() counts them at once.
Status fill_page_cache(const Fd& fd, std::uint64_t offset, std::uint64_t length);

}  // namespace infercluster::os
