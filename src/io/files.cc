// SPDX-License-Identifier: Apache-2.0
#include "io/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>

#include "base/units.h"
#include "os/file.h"

namespace infercluster::io {
namespace {

constexpr std::size_t kWriteBytesMax = 16 * kMiB;
constexpr std::size_t kEntriesMax = 10'000'000;

std::string path_in(const Directory& directory, const std::string& name) {
  return directory.path.ends_with('/') ? directory.path + name : directory.path + "/" + name;
}

Error failed(int system_errno, std::string_view action, std::string path) {
  return Error::from_errno(system_errno, action).with_path(std::move(path));
}

// -1 with errno; again when a signal came in between.
template <typename Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

Result<Directory> open_at(int parent, const std::string& name, std::string path) {
  Fd fd(uninterrupted([&] { return ::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!fd.valid()) return failed(errno, "cannot open the directory", std::move(path));
  return Directory{std::move(fd), std::move(path)};
}

Status checked(int result, std::string_view action, std::string path) {
  if (result != 0) return failed(errno, action, std::move(path));
  return {};
}

bool is_directory(int parent, const dirent& entry) {
  if (entry.d_type != DT_UNKNOWN) return entry.d_type == DT_DIR;
  struct stat status {};
  return ::fstatat(parent, entry.d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(status.st_mode);
}

// File systems of a local device, by statfs(2)'s magic numbers.
bool is_of_this_node_alone(int fd) {
  constexpr std::array<std::uint32_t, 4> kLocal{0xEF53, 0x58465342, 0x9123683E, 0xF2F52010};  // ext4, XFS, Btrfs, F2FS
  struct statfs found {};
  if (::fstatfs(fd, &found) != 0) return false;
  return std::ranges::find(kLocal, static_cast<std::uint32_t>(found.f_type)) != kLocal.end();
}

Status read_all(int fd, std::string& into, std::uint64_t limit, const std::string& path) {
  std::array<char, 64 * kKiB> piece{};
  while (true) {
    const ssize_t count = uninterrupted([&] { return ::read(fd, piece.data(), piece.size()); });
    if (count < 0) return failed(errno, "cannot read", path);
    if (count == 0) return {};
    into.append(piece.data(), static_cast<std::size_t>(count));
    if (into.size() > limit) {
      return Error(ErrorCode::too_large, "expected at most " + std::to_string(limit) + " bytes").with_path(path);
    }
  }
}

class SystemFiles final : public FileCalls {
 public:
  Result<Directory> open_directory(const std::string& path) override { return open_at(AT_FDCWD, path, path); }

  Result<Directory> open_directory_in(const Directory& parent, const std::string& name) override {
    return open_at(parent.fd.get(), name, path_in(parent, name));
  }

  Status make_directory(const Directory& parent, const std::string& name) override {
    return checked(::mkdirat(parent.fd.get(), name.c_str(), 0777), "cannot make the directory", path_in(parent, name));
  }

  Status sync_directory(const Directory& directory) override {
    // EINVAL: this file system does not sync directories at all, and nothing more can be done there.
    if (::fsync(directory.fd.get()) != 0 && errno != EINVAL)
      return failed(errno, "cannot sync the directory", directory.path);
    return {};
  }

  Result<std::vector<Entry>> list(const Directory& directory) override {
    // Opened anew: the position of a descriptor is shared.
    IC_TRY(Directory again, open_at(directory.fd.get(), ".", directory.path));
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(again.fd.get()), &::closedir);
    if (stream == nullptr) return failed(errno, "cannot list the directory", directory.path);
    static_cast<void>(again.fd.release());  // the stream's now
    std::vector<Entry> entries;
    while (true) {
      errno = 0;
      const dirent* entry = ::readdir(stream.get());
      if (entry == nullptr) break;
      const std::string name = entry->d_name;
      if (name == "." || name == "..") continue;
      if (entries.size() == kEntriesMax)
        return Error(ErrorCode::too_large, "over ten million entries").with_path(directory.path);
      entries.push_back({name, is_directory(directory.fd.get(), *entry)});
    }
    if (errno != 0) return failed(errno, "cannot list the directory", directory.path);
    return entries;
  }

  Result<bool> is_entry(const Directory& parent, const std::string& name, const Directory& directory) override {
    struct stat there {};
    struct stat open {};
    if (::fstatat(parent.fd.get(), name.c_str(), &there, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT) return false;
      return failed(errno, "cannot stat", path_in(parent, name));
    }
    if (::fstat(directory.fd.get(), &open) != 0) return failed(errno, "cannot stat", directory.path);
    return there.st_dev == open.st_dev && there.st_ino == open.st_ino;
  }

  Status remove_directory(const Directory& parent, const std::string& name) override {
    return checked(::unlinkat(parent.fd.get(), name.c_str(), AT_REMOVEDIR), "cannot remove the directory",
                   path_in(parent, name));
  }

  Result<OutputFile> create(const Directory& directory, const std::string& name) override {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    Fd fd(uninterrupted([&] { return ::openat(directory.fd.get(), name.c_str(), kFlags, 0666); }));
    if (!fd.valid()) return failed(errno, "cannot create", path_in(directory, name));
    return OutputFile{std::move(fd), path_in(directory, name)};
  }

  Result<OutputFile> open_to_write(const Directory& directory, const std::string& name) override {
    IC_CHECK(size_of(directory, name));  // a regular file, or an error
    constexpr int kFlags = O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    Fd fd(uninterrupted([&] { return ::openat(directory.fd.get(), name.c_str(), kFlags); }));
    if (!fd.valid()) return failed(errno, "cannot open to write", path_in(directory, name));
    return OutputFile{std::move(fd), path_in(directory, name)};
  }

  Status set_direct(const OutputFile& file, DirectIo direct) override {
    const int flags = ::fcntl(file.fd.get(), F_GETFL);
    const int wanted = direct == DirectIo::on ? flags | O_DIRECT : flags & ~O_DIRECT;
    const bool done = flags >= 0 && ::fcntl(file.fd.get(), F_SETFL, wanted) == 0;
    return checked(done ? 0 : -1, "cannot switch direct I/O", file.path);
  }

  Status reserve(const OutputFile& file, std::uint64_t bytes) override {
    if (bytes == 0) return {};
    const int result = uninterrupted([&] { return ::fallocate(file.fd.get(), 0, 0, static_cast<off_t>(bytes)); });
    if (result != 0 && errno == EOPNOTSUPP) return {};
    return checked(result, "cannot reserve " + format_bytes(bytes), file.path);
  }

  Result<std::uint64_t> write(const OutputFile& file, std::span<const std::byte> bytes, std::uint64_t offset) override {
    const ssize_t count = uninterrupted([&] {
      return ::pwrite(file.fd.get(), bytes.data(), std::min(bytes.size(), kWriteBytesMax), static_cast<off_t>(offset));
    });
    if (count < 0) return failed(errno, "cannot write", file.path).with_offset(offset);
    if (count == 0) return Error(ErrorCode::io, "a write wrote nothing").with_path(file.path).with_offset(offset);
    return static_cast<std::uint64_t>(count);
  }

  Status set_size(const OutputFile& file, std::uint64_t bytes) override {
    return checked(uninterrupted([&] { return ::ftruncate(file.fd.get(), static_cast<off_t>(bytes)); }),
                   "cannot set the size", file.path);
  }

  Status sync(const OutputFile& file) override { return checked(::fsync(file.fd.get()), "cannot sync", file.path); }

  Status close(OutputFile file) override {
    if (const int error = file.fd.close_checked(); error != 0) return failed(error, "cannot close", file.path);
    return {};
  }

  Result<bool> is_forgotten(const OutputFile& file) override {
    struct stat status {};
    if (::fstat(file.fd.get(), &status) != 0) return failed(errno, "cannot stat", file.path);
    if (status.st_nlink != 0 || !is_of_this_node_alone(file.fd.get())) return false;
    // fcntl(2): a write lease is given only to the one who alone has the file open.
    if (::fcntl(file.fd.get(), F_SETLEASE, F_WRLCK) != 0) return false;
    return checked(::fcntl(file.fd.get(), F_SETLEASE, F_UNLCK), "cannot give a lease back", file.path).ok();
  }

  Status link(const Directory& directory, const std::string& from, const std::string& to) override {
    return checked(::linkat(directory.fd.get(), from.c_str(), directory.fd.get(), to.c_str(), 0),
                   "cannot link " + from + " to it", path_in(directory, to));
  }

  Status link_into(const Directory& from_directory, const std::string& from, const Directory& to_directory,
                   const std::string& to) override {
    return checked(::linkat(from_directory.fd.get(), from.c_str(), to_directory.fd.get(), to.c_str(), 0),
                   "cannot link " + path_in(from_directory, from) + " to it", path_in(to_directory, to));
  }

  Status rename(const Directory& directory, const std::string& from, const std::string& to) override {
    return checked(::renameat(directory.fd.get(), from.c_str(), directory.fd.get(), to.c_str()),
                   "cannot rename " + from + " to it", path_in(directory, to));
  }

  Status remove(const Directory& directory, const std::string& name) override {
    return checked(::unlinkat(directory.fd.get(), name.c_str(), 0), "cannot remove", path_in(directory, name));
  }

  Result<std::uint64_t> size_of(const Directory& directory, const std::string& name) override {
    struct stat status {};
    if (::fstatat(directory.fd.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
      return failed(errno, "cannot stat", path_in(directory, name));
    if (!S_ISREG(status.st_mode))
      return Error(ErrorCode::invalid_argument, "expected a regular file").with_path(path_in(directory, name));
    return static_cast<std::uint64_t>(status.st_size);
  }

  Result<std::uint64_t> read_at(const Directory& directory, const std::string& name, std::span<std::byte> to,
                                std::uint64_t offset) override {
    const std::string path = path_in(directory, name);
    const Fd fd(uninterrupted(
        [&] { return ::openat(directory.fd.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); }));
    if (!fd.valid()) return failed(errno, "cannot open", path);
    const auto count =
        uninterrupted([&] { return ::pread(fd.get(), to.data(), to.size(), static_cast<off_t>(offset)); });
    if (count < 0) return failed(errno, "cannot read", path);
    return static_cast<std::uint64_t>(count);
  }
  Result<std::string> read_small(const Directory& directory, const std::string& name, std::uint64_t limit) override {
    const std::string path = path_in(directory, name);
    IC_TRY(const std::uint64_t size, size_of(directory, name));
    if (size > limit) {
      return Error(ErrorCode::too_large,
                   "expected at most " + std::to_string(limit) + " bytes, found " + std::to_string(size))
          .with_path(path);
    }
    const Fd fd(uninterrupted(
        [&] { return ::openat(directory.fd.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); }));
    if (!fd.valid()) return failed(errno, "cannot open", path);
    std::string content;
    content.reserve(size);
    IC_CHECK(read_all(fd.get(), content, limit, path));
    return content;
  }
};

}  // namespace

FileCalls& system_files() {
  static SystemFiles files;
  return files;
}

Status write_fully(FileCalls& calls, const OutputFile& file, std::span<const std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    IC_TRY(const std::uint64_t count, calls.write(file, bytes, offset));
    bytes = bytes.subspan(count);
    offset += count;
  }
  return {};
}

}  // namespace infercluster::io
