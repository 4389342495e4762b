// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "io/source.h"
#include "os/page_cache.h"

namespace infercluster::io {
namespace {

// From this share of resident pages on, buffered reads of the whole are faster than direct ones. With direct reads into
// fresh memory at 2 GB/s, page-cache copies at 4 and cold buffered reads at 0.7 (bench/load), they meet at 0.8; a probe
// of 64 pages is off by 0.05 at most times.
constexpr double kResidentFraction = 0.9;

std::string percent_resident(const os::Residency& residency) {
  if (residency.method == "unknown") return "how much of it is in the page cache is unknown";
  // Rounded down, so that "100 %" means all of it.
  return std::to_string(static_cast<int>(std::floor(residency.fraction * 100.0))) + " % of it is in the page cache (" +
         residency.method + ")";
}

std::string words_for_mount(const Fd& fd) {
  const Result<os::Mount> mount = os::mount_of(fd);
  if (!mount.ok()) return "its mount";
  return "the mount " + mount->mount_point + " (" + mount->type + ")";
}

// One notice per mount and process: a repository of a hundred shards on such a mount is one fact, not a hundred. Every
// file's reason is in its report.
void notice_once(std::uint64_t device, const std::string& text) {
  static std::mutex mutex;
  static std::array<std::uint64_t, 32> seen{};
  static std::size_t count = 0;
  {
    const std::lock_guard lock(mutex);
    const auto end = seen.begin() + static_cast<std::ptrdiff_t>(std::min(count, seen.size()));
    if (std::find(seen.begin(), end, device) != end) return;
    seen[count++ % seen.size()] = device;
  }
  log_warning(text);
}

bool refuses_direct(int system_errno) {
  return system_errno == EINVAL || system_errno == EOPNOTSUPP;
}

bool lacks_descriptors(int system_errno) {
  return system_errno == EMFILE || system_errno == ENFILE;
}

std::string nanoseconds_text(std::int64_t ns) {
  return std::to_string(ns) + " ns";
}

// What differs, in words; empty: nothing.
std::string difference(const os::FileIdentity& expected, const os::FileIdentity& found) {
  if (expected.size != found.size) {
    return "size: expected " + std::to_string(expected.size) + " bytes, found " + std::to_string(found.size);
  }
  if (expected.mtime_ns != found.mtime_ns) {
    return "modification time: expected " + nanoseconds_text(expected.mtime_ns) + ", found " +
           nanoseconds_text(found.mtime_ns);
  }
  if (expected.ctime_ns != found.ctime_ns) {
    return "change time: expected " + nanoseconds_text(expected.ctime_ns) + ", found " +
           nanoseconds_text(found.ctime_ns);
  }
  if (expected != found) return "device or inode";
  return {};
}

Error changed(const std::string& path, const std::string& what) {
  return Error(ErrorCode::changed, "the file changed while it was read (" + what + ")")
      .with_path(path)
      .with_hint("Its bytes cannot be trusted; load again once nothing writes to it");
}

}  // namespace

Result<std::unique_ptr<FileSource>> FileSource::open(const std::string& path, std::shared_ptr<const Fd> fd,
                                                     const Options& options) {
  std::unique_ptr<FileSource> source(new FileSource());
  source->path_ = path;
  source->policy_ = options.direct;
  if (fd == nullptr) {
    IC_TRY(Fd opened, os::open_for_reading(path));
    fd = std::make_shared<const Fd>(std::move(opened));
  }
  source->buffered_ = std::move(fd);
  IC_TRY(source->identity_, os::identity_of(*source->buffered_));
  IC_TRY(source->file_system_, os::file_system_of(*source->buffered_));
  IC_CHECK(source->choose_mode(options));
  source->direct_.reset();
  return source;
}

Status FileSource::choose_mode(const Options& options) {
  if (policy_ == DirectPolicy::always) {
    Status opened = open_direct();
    if (!opened.ok()) return std::move(opened).error();
    mode_ = FileMode::direct;
    reason_ = "direct I/O was demanded";
    return {};
  }
  if (file_system_.in_memory) {
    mode_ = FileMode::resident;
    reason_ = file_system_.name + " keeps it in memory";
    return {};
  }
  const std::uint64_t end = std::min(options.end, identity_.size);
  if (options.begin >= end) {
    mode_ = FileMode::buffered;
    reason_ = "nothing of it is to be read";
    return {};
  }
  const os::Residency residency = os::residency_of(*buffered_, options.begin, end - options.begin);
  reason_ = percent_resident(residency);
  if (residency.method != "unknown" && residency.fraction >= kResidentFraction) {
    mode_ = FileMode::resident;
    return {};
  }
  mode_ = FileMode::buffered;
  if (policy_ == DirectPolicy::never) {
    reason_ += ", and direct I/O was forbidden";
    return {};
  }
  const Status opened = open_direct();
  if (opened.ok()) {
    mode_ = FileMode::direct;
    return {};
  }
  reason_ = opened.error().message();
  notice_once(identity_.device, path_ + ": reading through the page cache, since " + reason_);
  return {};
}

Status FileSource::open_direct() {
  Result<Fd> direct = os::reopen_for_reading(*buffered_, os::OpenMode::direct);
  if (!direct.ok()) {
    const int system_errno = direct.error().system_errno();
    if (lacks_descriptors(system_errno)) {
      return Error::from_errno(system_errno, "no descriptor is left to open it for direct I/O").with_path(path_);
    }
    const std::string action = words_for_mount(*buffered_) + " refuses to open it for direct I/O";
    return Error::from_errno(system_errno == 0 ? EINVAL : system_errno, action)
        .with_path(path_)
        .with_hint("Allow buffered reads for it");
  }
  limits_ = os::direct_limits_of(*buffered_);
  const std::uint32_t alignment = std::max(limits_.memory_alignment, limits_.offset_alignment);
  if (!limits_.supported || !is_power_of_two(alignment)) {
    return Error(ErrorCode::unsupported,
                 words_for_mount(*buffered_) + " does not do direct I/O for it: " + limits_.reason)
        .with_path(path_)
        .with_hint("Allow buffered reads for it");
  }
  direct_ = std::move(direct).value();
  return {};
}

// False: there is none; see direct_errno_ and mode().
bool FileSource::ensure_direct() {
  if (direct_.valid()) return true;
  Result<Fd> direct = os::reopen_for_reading(*buffered_, os::OpenMode::direct);
  if (direct.ok()) {
    direct_ = std::move(direct).value();
    return true;
  }
  if (policy_ == DirectPolicy::always)
    direct_errno_ = direct.error().system_errno();
  else
    give_up_direct("it could not be opened for direct I/O again: " + direct.error().message());
  return false;
}

void FileSource::give_up_direct(std::string reason) {
  gave_up_direct_ = true;
  mode_ = FileMode::buffered;
  reason_ = std::move(reason);
  notice_once(identity_.device, path_ + ": reading through the page cache, since " + reason_);
}

std::uint32_t FileSource::alignment() const {
  return mode_ == FileMode::direct ? std::max(limits_.memory_alignment, limits_.offset_alignment) : 1;
}

std::optional<ReadOperation> FileSource::operation(const Attempt& attempt) {
  ReadOperation operation{.fd = buffered_->get(),
                          .offset = attempt.offset,
                          .memory = attempt.memory,
                          .length = attempt.length,
                          .hint = mode_ == FileMode::resident ? ReadHint::resident : ReadHint::buffered,
                          .token = attempt.token};
  // An attempt that does not obey alignment(), as one planned for another source of its set, is read through the page
  // cache.
  const std::uint64_t mask = alignment() - 1;
  const std::uint64_t odd = attempt.offset | attempt.length | reinterpret_cast<std::uintptr_t>(attempt.memory);
  if (mode_ == FileMode::direct && (odd & mask) == 0) {
    if (ensure_direct()) {
      operation.fd = direct_.get();
      operation.hint = ReadHint::device;
    } else if (mode_ == FileMode::direct) {
      return std::nullopt;  // start() says why
    }
  }
  return operation;
}

void FileSource::start(const Attempt& attempt, const AttemptDone& done) {
  done(attempt.token, -direct_errno_);
}

ErrorAction FileSource::on_error(int system_errno) {
  if (!refuses_direct(system_errno) || policy_ == DirectPolicy::always) return ErrorAction::fail;
  if (gave_up_direct_) return ErrorAction::retry;  // begun before; the engine bounds how often
  if (mode_ != FileMode::direct) return ErrorAction::fail;
  give_up_direct(Error::from_errno(system_errno, words_for_mount(*buffered_) + " refused a direct read").message());
  return ErrorAction::retry;
}

std::string FileSource::hint_for(int system_errno) const {
  if (mode_ != FileMode::direct || !refuses_direct(system_errno)) return {};
  const std::string mount = words_for_mount(*buffered_);
  return "Direct I/O was demanded, but " + mount + " refused a direct read; allow buffered reads for it";
}

Status FileSource::check_unchanged() const {
  IC_TRY(const os::FileIdentity now, os::identity_of(*buffered_));
  struct stat at_path {};
  if (::stat(path_.c_str(), &at_path) == 0) {
    if (at_path.st_ino != identity_.inode || at_path.st_dev != identity_.device)
      return changed(path_, "another file took its place");
  } else if (errno == ENOENT || errno == ENOTDIR) {
    return changed(path_, "it was removed or renamed");
  }
  const std::string what = difference(identity_, now);
  if (!what.empty()) return changed(path_, what);
  return {};
}

}  // namespace infercluster::io
