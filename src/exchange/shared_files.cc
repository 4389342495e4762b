// SPDX-License-Identifier: Apache-2.0
#include "exchange/shared_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>

#include "base/fd.h"

namespace infercluster::exchange {
namespace {

Error failed(std::string_view action, const std::string& path) {
  return Error::from_errno(errno, action).with_path(path);
}

Status write_and_close(Fd fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failed("cannot write", path);
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  // NFS and quotas may only tell now.
  if (const int error = fd.close_checked(); error != 0) return Error::from_errno(error, "cannot close").with_path(path);
  return {};
}

}  // namespace

Result<std::string> SharedFiles::read(const std::string& path, std::uint64_t limit) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid()) return failed("cannot open", path);
  std::string bytes;
  std::array<char, 16384> buffer{};
  for (;;) {
    const ssize_t count = ::read(fd.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failed("cannot read", path);
    if (count == 0) return bytes;
    bytes.append(buffer.data(), static_cast<std::size_t>(count));
    if (bytes.size() > limit)
      return Error(ErrorCode::too_large, "the file is longer than " + std::to_string(limit) + " bytes").with_path(path);
  }
}

Status SharedFiles::create(const std::string& path, std::string_view bytes) {
  constexpr mode_t kMode = 0666;
  Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode));
  if (!fd.valid()) return failed("cannot create", path);
  Status written = write_and_close(std::move(fd), bytes, path);
  if (!written.ok()) (void)::unlink(path.c_str());
  return written;
}

Status SharedFiles::overwrite(const std::string& path, std::string_view bytes) {
  Fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return failed("cannot open", path);
  return write_and_close(std::move(fd), bytes, path);
}

Status SharedFiles::rename(const std::string& from, const std::string& to) {
  return std::rename(from.c_str(), to.c_str()) == 0 ? Status() : failed("cannot rename to", to);
}

Status SharedFiles::link(const std::string& from, const std::string& to) {
  return ::link(from.c_str(), to.c_str()) == 0 ? Status() : failed("cannot link", to);
}

Status SharedFiles::remove(const std::string& path) {
  return ::unlink(path.c_str()) == 0 ? Status() : failed("cannot remove", path);
}

Status SharedFiles::make_directory(const std::string& path) {
  constexpr mode_t kMode = 0777;
  return ::mkdir(path.c_str(), kMode) == 0 ? Status() : failed("cannot make the directory", path);
}

Status SharedFiles::remove_directory(const std::string& path) {
  return ::rmdir(path.c_str()) == 0 ? Status() : failed("cannot remove the directory", path);
}

Result<std::vector<std::string>> SharedFiles::list(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return failed("cannot open the directory", path);
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::fdopendir(fd.get()), ::closedir);
  if (!directory) return failed("cannot list", path);
  (void)fd.release();  // closedir closes it
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(directory.get());
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  if (errno != 0) return failed("cannot list", path);
  return names;
}

}  // namespace infercluster::exchange
