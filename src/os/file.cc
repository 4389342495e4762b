// SPDX-License-Identifier: Apache-2.0
#include "os/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <string_view>

#include "base/checked.h"
#include "base/units.h"

namespace infercluster::os {
namespace {

constexpr std::size_t kRequestBytesMax = 16 * kMiB;
constexpr int kTemporaryNameTries = 100;
constexpr std::int64_t kNanosecondsPerSecond = 1'000'000'000;

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "something else";
}

Error not_regular(mode_t mode, const std::string& shown) {
  return Error(ErrorCode::invalid_argument, "expected a regular file, found " + std::string(kind_of(mode)))
      .with_path(shown);
}

int open_uninterrupted(const char* path, int flags, mode_t mode = 0) {
  int fd = -1;
  do {
    fd = ::open(path, flags, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

// `shown` is the path for messages; `path` may be a link in /proc.
Result<Fd> open_regular(const std::string& path, OpenMode mode, const std::string& shown) {
  const bool direct = mode == OpenMode::direct;
  const int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | (direct ? O_DIRECT : 0);
  Fd fd(open_uninterrupted(path.c_str(), flags));
  struct stat status {};
  if (!fd.valid()) {
    const int failed = errno;
    // What is no file at all refuses O_DIRECT as well: name the real cause.
    if (direct && failed == EINVAL && ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
      return not_regular(status.st_mode, shown);
    }
    return Error::from_errno(failed, direct ? "cannot open with O_DIRECT" : "cannot open").with_path(shown);
  }
  if (::fstat(fd.get(), &status) != 0) return Error::from_errno(errno, "cannot stat").with_path(shown);
  if (!S_ISREG(status.st_mode)) return not_regular(status.st_mode, shown);
  // O_NONBLOCK was for the open alone: io_uring would honour it for reads on some file systems, and give EAGAIN.
  const int now = ::fcntl(fd.get(), F_GETFL);
  if (now < 0 || ::fcntl(fd.get(), F_SETFL, now & ~O_NONBLOCK) != 0) {
    return Error::from_errno(errno, "cannot set file flags").with_path(shown);
  }
  return fd;
}

std::string link_target(const std::string& link) {
  std::array<char, PATH_MAX> target{};
  const ssize_t length = ::readlink(link.c_str(), target.data(), target.size());
  return length > 0 ? std::string(target.data(), static_cast<std::size_t>(length)) : link;
}

Status write_all(const Fd& fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd.get(), bytes.data(), std::min(bytes.size(), kRequestBytesMax));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Error::from_errno(errno, "cannot write");
    if (count == 0) return Error(ErrorCode::io, "a write wrote nothing");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

Status sync_directory(const std::string& directory) {
  const Fd fd(open_uninterrupted(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return Error::from_errno(errno, "cannot open the directory").with_path(directory);
  // EINVAL: this file system does not sync directories at all, and nothing more can be done there.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) {
    return Error::from_errno(errno, "cannot sync the directory").with_path(directory);
  }
  return {};
}

// A file that is removed again unless it was renamed to its real name.
class TemporaryFile {
 public:
  static Result<TemporaryFile> create_in(const std::string& directory) {
    static std::atomic<unsigned> serial{0};
    for (int attempt = 0; attempt < kTemporaryNameTries; ++attempt) {
      std::string name =
          directory + "/.infercluster-" + std::to_string(::getpid()) + "-" + std::to_string(serial++) + ".tmp";
      Fd fd(open_uninterrupted(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      if (fd.valid()) return TemporaryFile(std::move(name), std::move(fd));
      if (errno != EEXIST) return Error::from_errno(errno, "cannot create a temporary file").with_path(directory);
    }
    return Error(ErrorCode::io, "no free name for a temporary file").with_path(directory);
  }
  TemporaryFile(TemporaryFile&& other) noexcept : name_(std::exchange(other.name_, {})), fd_(std::move(other.fd_)) {}
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile() {
    if (!name_.empty()) ::unlink(name_.c_str());
  }

  // Writes, fsyncs and closes. A failed fsync is final: the kernel may have dropped the pages.
  Status fill(std::span<const std::byte> bytes) {
    IC_CHECK(write_all(fd_, bytes));
    if (::fsync(fd_.get()) != 0) return Error::from_errno(errno, "cannot sync");
    if (const int failed = fd_.close_checked(); failed != 0) return Error::from_errno(failed, "cannot close");
    return {};
  }

  Status rename_to(const std::string& path) {
    if (::rename(name_.c_str(), path.c_str()) != 0)
      return Error::from_errno(errno, "cannot rename a temporary file to it");
    name_.clear();
    return {};
  }

 private:
  TemporaryFile(std::string name, Fd fd) : name_(std::move(name)), fd_(std::move(fd)) {}

  std::string name_;  // empty: nothing to remove
  Fd fd_;
};

}  // namespace

Result<Fd> open_for_reading(const std::string& path, OpenMode mode) {
  return open_regular(path, mode, path);
}

Result<Fd> reopen_for_reading(const Fd& fd, OpenMode mode) {
  const std::string link = "/proc/self/fd/" + std::to_string(fd.get());
  return open_regular(link, mode, link_target(link));
}

Result<FileIdentity> identity_of(const Fd& fd) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return Error::from_errno(errno, "cannot stat");
  const auto nanoseconds = [](const timespec& time) { return time.tv_sec * kNanosecondsPerSecond + time.tv_nsec; };
  return FileIdentity{.device = status.st_dev,
                      .inode = status.st_ino,
                      .size = static_cast<std::uint64_t>(status.st_size),
                      .mtime_ns = nanoseconds(status.st_mtim),
                      .ctime_ns = nanoseconds(status.st_ctim)};
}

Status read_exactly(const Fd& fd, std::span<std::byte> into, std::uint64_t offset, const std::string& path) {
  const auto end = checked_add<std::uint64_t>(offset, into.size());
  if (!end || *end > static_cast<std::uint64_t>(INT64_MAX)) {
    return Error(ErrorCode::invalid_argument, "the range ends beyond the largest file offset")
        .with_path(path)
        .with_offset(offset);
  }
  while (!into.empty()) {
    const std::size_t wanted = std::min(into.size(), kRequestBytesMax);
    const ssize_t count = ::pread(fd.get(), into.data(), wanted, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Error::from_errno(errno, "cannot read").with_path(path).with_offset(offset);
    if (count == 0) {
      return Error(ErrorCode::corrupt,
                   "the file ends here, but " + std::to_string(into.size()) + " more bytes were expected")
          .with_path(path)
          .with_offset(offset);
    }
    into = into.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
  return {};
}

Result<std::string> read_small_file(const std::string& path, std::uint64_t limit) {
  IC_TRY(const Fd fd, open_for_reading(path));
  IC_TRY(const FileIdentity identity, identity_of(fd));
  const auto too_large = [&](std::uint64_t found) {
    return Error(ErrorCode::too_large,
                 "expected at most " + std::to_string(limit) + " bytes, found " + std::to_string(found))
        .with_path(path);
  };
  if (identity.size > limit) return too_large(identity.size);
  // The size is a hint only: files in /proc say 0, and a file may grow meanwhile.
  std::string content;
  std::array<char, 16 * kKiB> piece{};
  while (true) {
    const ssize_t count = ::read(fd.get(), piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Error::from_errno(errno, "cannot read").with_path(path).with_offset(content.size());
    if (count == 0) return content;
    content.append(piece.data(), static_cast<std::size_t>(count));
    if (content.size() > limit) return too_large(content.size());
  }
}

Status write_file_atomically(const std::string& path, std::span<const std::byte> bytes) {
  const std::size_t slash = path.rfind('/');
  std::string directory = ".";
  if (slash != std::string::npos) directory = slash == 0 ? "/" : path.substr(0, slash);
  const auto name_it = [&](Status status) -> Status {
    if (status.ok() || !status.error().path().empty()) return status;
    return std::move(status).error().with_path(path);
  };
  IC_TRY(TemporaryFile temporary, TemporaryFile::create_in(directory));
  IC_CHECK(name_it(temporary.fill(bytes)));
  IC_CHECK(name_it(temporary.rename_to(path)));
  return sync_directory(directory);
}

}  // namespace infercluster::os
