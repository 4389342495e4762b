// SPDX-License-Identifier: Apache-2.0
// What a file system is, and what direct I/O on it asks for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"

namespace infercluster::os {

struct FileSystem {
  std::string name;      // "ext4", "xfs", "tmpfs", "nfs", "lustre", "gpfs", "ceph", "fuse", "overlay", ... or "0x1234"
                         // (statfs magic)
  bool network = false;  // pages come over a network: never mapped
  bool in_memory = false;  // tmpfs, ramfs: there is no device below
};

Result<FileSystem> file_system_of(const Fd& fd);

// What O_DIRECT asks for on one file. Alignments are powers of two in bytes.
struct DirectLimits {
  bool supported = false;
  std::uint32_t memory_alignment = 0;
  std::uint32_t offset_alignment = 0;  // of offset and length
  std::string reason;                  // why not supported, or where the figures come from: "statx", "probed"
};

// From statx(STATX_DIOALIGN) where the file system answers, else by test reads of the file at 512 and 4096 bytes.
DirectLimits direct_limits_of(const Fd& fd);
// The second way alone. An empty file tells nothing: 4096 then.
DirectLimits probe_direct_limits(const Fd& fd);

// The mount that holds `fd`: its mount point and options, from /proc/self/mountinfo. For messages and `doctor`.
struct Mount {
  std::string mount_point;
  std::string device;
  std::string type;
  std::string options;
};
Result<Mount> mount_of(const Fd& fd);

}  // namespace infercluster::os
