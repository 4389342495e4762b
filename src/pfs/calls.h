// SPDX-License-Identifier: Apache-2.0
// What pfs asks of the system, in one place: tests record the bytes and requests exactly, since no Lustre and no GPFS
// was at hand when this was written. Thread-safe. Errors carry the errno.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"
#include "os/mount.h"

namespace infercluster::pfs {

struct StatFs {
  std::uint32_t magic = 0;
  std::uint64_t block_bytes = 0;  // st_blksize: GPFS's block, and what others like best
};

class Calls {
 public:
  Calls() = default;
  virtual ~Calls() = default;
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  virtual Result<StatFs> stat_fs(const Fd& fd);
  // The line of the mount table.
  virtual Result<os::Mount> mount(const Fd& fd);
  // openat(2) of a new file.
  virtual Result<Fd> create(const Fd& directory, const std::string& name, int flags, mode_t mode);
  // Bytes as they go to the kernel, or come from it (at most 64 KiB, as xattr(7) has it).
  virtual Status set_xattr(const Fd& fd, const char* name, std::string_view value);
  virtual Result<std::string> get_xattr(const Fd& fd, const char* name);
  virtual Status ioctl(const Fd& fd, unsigned long request, std::string_view argument);
  // libgpfs, found at run time (INFERCLUSTER_LIBGPFS names another, or none when it is empty). Error unsupported: not
  // found.
  virtual Status gpfs_fcntl(const Fd& fd, std::string_view argument);
  virtual Status gpfs_prealloc(const Fd& fd, std::int64_t offset, std::int64_t length);
  [[nodiscard]] virtual Status gpfs_library();
};

// The system itself. Lives for ever.
Calls& system_calls();

}  // namespace infercluster::pfs
