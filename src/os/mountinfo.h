// SPDX-License-Identifier: Apache-2.0
// Pure parser of /proc/PID/mountinfo (proc(5)): text in, values out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace infercluster::os {

struct MountLine {
  std::uint64_t id = 0;
  std::string root;         // the path within the file system that is mounted here
  std::string mount_point;  // as this process sees it
  std::string type;         // "ext4", "cgroup2", "fuse.sshfs"
  std::string source;       // "/dev/sda1", "server:/export"
  std::string options;      // of the mount, then of the file system; comma-separated
};

// Lines that do not have the form that proc(5) gives are skipped. Octal escapes (\040) are undone.
std::vector<MountLine> parse_mountinfo(std::string_view text);

}  // namespace infercluster::os
