// SPDX-License-Identifier: Apache-2.0
#include "pfs/calls.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/xattr.h>

#include <cerrno>
#include <cstdlib>

namespace infercluster::pfs {
namespace {

constexpr std::size_t kXattrBytesMax = 65536;

// From gpfs.h and gpfs_fcntl.h of IBM's package; gpfs_file_t is int there, gpfs_off64_t long long.
using GpfsFcntl = int (*)(int fd, void* argument);
using GpfsPrealloc = int (*)(int fd, long long offset, long long length);

struct GpfsLibrary {
  GpfsFcntl fcntl = nullptr;
  GpfsPrealloc prealloc = nullptr;
  std::string missing;  // why not; empty: it is there
};

const GpfsLibrary& gpfs() {
  static const GpfsLibrary library = [] {
    const char* const word = std::getenv("INFERCLUSTER_LIBGPFS");  // NOLINT(concurrency-mt-unsafe): read only
    const std::string name = word != nullptr ? word : "libgpfs.so";
    GpfsLibrary found;
    if (name.empty()) {
      found.missing = "libgpfs is switched off by INFERCLUSTER_LIBGPFS";
      return found;
    }
    void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == nullptr) {
      const char* const reason = ::dlerror();
      found.missing = reason != nullptr ? reason : name + " cannot be loaded";
      return found;
    }
    found.fcntl = reinterpret_cast<GpfsFcntl>(::dlsym(handle, "gpfs_fcntl"));
    found.prealloc = reinterpret_cast<GpfsPrealloc>(::dlsym(handle, "gpfs_prealloc"));
    if (found.fcntl == nullptr || found.prealloc == nullptr)
      found.missing = name + " has no gpfs_fcntl or no gpfs_prealloc";
    return found;
  }();
  return library;
}

}  // namespace

Result<StatFs> Calls::stat_fs(const Fd& fd) {
  struct statfs status {};
  struct stat file {};
  if (::fstatfs(fd.get(), &status) != 0 || ::fstat(fd.get(), &file) != 0)
    return Error::from_errno(errno, "cannot ask for the file system");
  return StatFs{static_cast<std::uint32_t>(status.f_type), static_cast<std::uint64_t>(file.st_blksize)};
}

Result<os::Mount> Calls::mount(const Fd& fd) {
  return os::mount_of(fd);
}

Result<Fd> Calls::create(const Fd& directory, const std::string& name, int flags, mode_t mode) {
  Fd fd(::openat(directory.get(), name.c_str(), flags, mode));
  while (!fd.valid() && errno == EINTR) fd = Fd(::openat(directory.get(), name.c_str(), flags, mode));
  if (!fd.valid()) return Error::from_errno(errno, "cannot create the file").with_path(name);
  return fd;
}

Status Calls::set_xattr(const Fd& fd, const char* name, std::string_view value) {
  if (::fsetxattr(fd.get(), name, value.data(), value.size(), 0) == 0) return {};
  return Error::from_errno(errno, std::string("cannot set ") + name);
}

Result<std::string> Calls::get_xattr(const Fd& fd, const char* name) {
  std::string value(kXattrBytesMax, '\0');
  const ssize_t size = ::fgetxattr(fd.get(), name, value.data(), value.size());
  if (size < 0) return Error::from_errno(errno, std::string("cannot read ") + name);
  value.resize(static_cast<std::size_t>(size));
  return value;
}

Status Calls::ioctl(const Fd& fd, unsigned long request, std::string_view argument) {
  std::string copy(argument);  // the kernel may write to it
  if (::ioctl(fd.get(), request, copy.data()) == 0) return {};
  return Error::from_errno(errno, "an ioctl failed");
}

Status Calls::gpfs_library() {
  return gpfs().missing.empty() ? Status() : Status(Error(ErrorCode::unsupported, gpfs().missing));
}

Status Calls::gpfs_fcntl(const Fd& fd, std::string_view argument) {
  IC_CHECK(gpfs_library());
  std::string copy(argument);  // errorOffset is written to it
  if (gpfs().fcntl(fd.get(), copy.data()) == 0) return {};
  return Error::from_errno(errno, "gpfs_fcntl failed");
}

Status Calls::gpfs_prealloc(const Fd& fd, std::int64_t offset, std::int64_t length) {
  IC_CHECK(gpfs_library());
  if (gpfs().prealloc(fd.get(), offset, length) == 0) return {};
  return Error::from_errno(errno, "gpfs_prealloc failed");
}

Calls& system_calls() {
  static Calls calls;
  return calls;
}

}  // namespace infercluster::pfs
