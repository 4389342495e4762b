// SPDX-License-Identifier: Apache-2.0
// Files by descriptor: opening, identity, whole reads and writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace infercluster::os {

// What makes a file the same file with the same bytes, as far as the kernel can tell. Compared at open and when a job
// ends.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size = 0;  // bytes
  std::int64_t mtime_ns = 0;
  std::int64_t ctime_ns = 0;

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

enum class OpenMode : std::uint8_t { buffered, direct };

// Opens a regular file for reading (O_CLOEXEC; O_DIRECT for `direct`). Never blocks on a FIFO or device: anything but a
// regular file is refused with invalid_argument. A mount that refuses O_DIRECT gives errno EINVAL.
Result<Fd> open_for_reading(const std::string& path, OpenMode mode = OpenMode::buffered);

// Opens the file behind `fd` anew (through /proc/self/fd), so that it is the same file even when the path was replaced.
Result<Fd> reopen_for_reading(const Fd& fd, OpenMode mode);

Result<FileIdentity> identity_of(const Fd& fd);

// Reads exactly `into.size()` bytes from `offset`; loops over short counts and EINTR. The end of the file before that
// is an error (code corrupt) with the offset where the file ended. `path` is for messages only.
Status read_exactly(const Fd& fd, std::span<std::byte> into, std::uint64_t offset, const std::string& path);

// Reads a whole small file, at most `limit` bytes; a larger one is refused (too_large).
Result<std::string> read_small_file(const std::string& path, std::uint64_t limit);

// Writes `bytes` to a temporary file beside `path`, fsyncs it, renames it to `path`, fsyncs the directory. A reader or
// a mapping of the old file keeps the old bytes; a symbolic link at `path` is replaced, not followed. Mode 0666 less
// the umask. On error the temporary file is gone and the old file untouched, except when the directory's fsync failed
// (the error's path is the directory): then the new file is in place, but may be lost in a power failure.
Status write_file_atomically(const std::string& path, std::span<const std::byte> bytes);

}  // namespace infercluster::os
