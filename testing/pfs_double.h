// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>

#include <cerrno>
#include <map>
#include <string>
#include <vector>

#include "pfs/calls.h"
#include "pfs/wire.h"

namespace infercluster::testing {

// A file system that is none: real files in a local directory, and everything else is recorded.
class PfsDouble final : public pfs::Calls {
 public:
  Result<pfs::StatFs> stat_fs(const Fd&) override { return pfs::StatFs{magic, block_bytes}; }
  Result<os::Mount> mount(const Fd&) override {
    if (mount_type.empty()) return Error(ErrorCode::unsupported, "no table");
    return os::Mount{.mount_point = "/mnt", .device = "x", .type = mount_type, .options = ""};
  }
  Result<Fd> create(const Fd& directory, const std::string& name, int flags, mode_t mode) override {
    open_flags = flags;
    return Calls::create(directory, name, flags & ~(FASYNC | O_NOCTTY), mode);
  }
  Status set_xattr(const Fd&, const char* name, std::string_view value) override {
    calls.push_back(std::string(name) + "=" + std::string(value));
    if (const auto code = failing(name)) return Error::from_errno(code, std::string("cannot set ") + name);
    xattrs[name] = value;
    return {};
  }
  Result<std::string> get_xattr(const Fd&, const char* name) override {
    const auto found = xattrs.find(name);
    if (found == xattrs.end()) return Error::from_errno(ENODATA, std::string("cannot read ") + name);
    return found->second;
  }
  Status ioctl(const Fd&, unsigned long request, std::string_view argument) override {
    calls.push_back("ioctl " + std::to_string(request) + "=" + std::string(argument));
    if (const auto code = failing("ioctl")) return Error::from_errno(code, "an ioctl failed");
    xattrs[pfs::kLustreLayoutName] = argument;
    return {};
  }
  Status gpfs_fcntl(const Fd&, std::string_view argument) override {
    calls.push_back("fcntl=" + std::string(argument));
    if (const auto code = failing("fcntl")) return Error::from_errno(code, "gpfs_fcntl failed");
    return {};
  }
  Status gpfs_prealloc(const Fd&, std::int64_t offset, std::int64_t length) override {
    calls.push_back("prealloc " + std::to_string(offset) + " " + std::to_string(length));
    if (const auto code = failing("prealloc")) return Error::from_errno(code, "gpfs_prealloc failed");
    return {};
  }
  Status gpfs_library() override { return {}; }

  std::uint32_t magic = 0xEF53;
  std::uint64_t block_bytes = 4096;
  std::string mount_type = "ext4";
  std::map<std::string, int> failures;  // of a call or xattr -> its errno
  std::map<std::string, std::string> xattrs;
  std::vector<std::string> calls;
  int open_flags = 0;

 private:
  int failing(const std::string& what) const {
    const auto found = failures.find(what);
    return found == failures.end() ? 0 : found->second;
  }
};

}  // namespace infercluster::testing
