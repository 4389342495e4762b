// SPDX-License-Identifier: Apache-2.0
#include "exchange/directory_store.h"

#include <algorithm>
#include <cerrno>
#include <span>
#include <thread>

#include "base/random.h"
#include "checksum/crc32c.h"
#include "exchange/cause.h"
#include "exchange/wire.h"

namespace infercluster::exchange {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kMagic = "ICXCHG1\n";
constexpr std::size_t kFrameBytes = 24;
constexpr std::uint64_t kFileBytesMax = kGatheredBytesMax + (2ULL << 20);
constexpr std::size_t kSpareBytes = 12288;
static_assert(kSpareBytes >= kCauseBytesMax + 64 + kFrameBytes);

std::uint32_t checksum_of(std::string_view value) {
  return checksum::crc32c(std::as_bytes(std::span(value.data(), value.size())));
}

// A reader that sees only a part of a file must notice.
std::string frame(std::string_view value) {
  Writer out;
  out.number(value.size());
  out.number(checksum_of(value));
  return std::string(kMagic) + out.take() + std::string(value);
}

// nullopt: not all there (yet). More bytes may follow the value: those of a spare file.
std::optional<std::string> unframe(std::string_view bytes) {
  if (bytes.size() < kFrameBytes || !bytes.starts_with(kMagic)) return std::nullopt;
  Reader in(bytes.substr(kMagic.size()));
  const auto size = in.number();
  const auto checksum = in.number();
  if (size > bytes.size() - kFrameBytes) return std::nullopt;
  const std::string_view value = bytes.substr(kFrameBytes, size);
  if (checksum_of(value) != checksum) return std::nullopt;
  return std::string(value);
}

// Absent, or not seen yet, or a handle to what was replaced: looking again may help.
bool may_heal(const Error& error) {
  const int code = error.system_errno();
  return code == ENOENT || code == ESTALE || code == EAGAIN || code == EBUSY || code == EINTR || code == ETIMEDOUT;
}

bool is_full(const Error& error) {
  return error.system_errno() == ENOSPC || error.system_errno() == EDQUOT;
}

bool has_no_links(const Error& error) {
  const int code = error.system_errno();
  return code == EPERM || code == EOPNOTSUPP || code == ENOSYS || code == EMLINK;
}

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

// Waits between two looks at the file system: 1 ms, then twice as long each time.
class Pause {
 public:
  Pause(Clock::Duration longest, Deadline until) : longest_(longest), until_(until) {}
  // False: the time is over.
  bool wait() {
    const auto now = steady_clock().now();
    if (now >= until_) return false;
    std::this_thread::sleep_for(std::min(next_, until_ - now));
    next_ = std::min(next_ * 2, longest_);
    return true;
  }

 private:
  Clock::Duration next_ = 1ms;
  const Clock::Duration longest_;
  const Deadline until_;
};

}  // namespace

DirectoryStore::DirectoryStore(std::string directory, int world, std::shared_ptr<SharedFiles> files)
    : directory_(std::move(directory)),
      pause_max_(std::clamp<Clock::Duration>(world * 125us, 50ms, 2s)),
      files_(std::move(files)),
      own_(random_hex(8)) {}

DirectoryStore::~DirectoryStore() {
  if (!spare_.empty()) (void)files_->remove(spare_);
  (void)files_->remove_directory(directory_);  // where nothing is left in it
}

std::string DirectoryStore::path_of(const std::string& key) const {
  return directory_ + "/" + key;
}

// In the folder of the job's first part, so that it goes with it.
std::string DirectoryStore::temporary_beside(const std::string& path) {
  return parent_of(path) + "/.tmp-" + own_ + "-" + std::to_string(counter_++);
}

Status DirectoryStore::make_parents(const std::string& path) {
  for (std::size_t slash = directory_.size(); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    const Status made = files_->make_directory(path.substr(0, slash));
    if (!made.ok() && made.error().system_errno() != EEXIST) return made;
  }
  return {};
}

Status DirectoryStore::create(const std::string& path, std::string_view framed, Deadline deadline) {
  Pause pause(pause_max_, deadline);
  for (;;) {
    Status status = files_->create(path, framed);
    if (status.ok() || !may_heal(status.error())) return status;
    Status made = make_parents(path);
    if (!made.ok() && !may_heal(made.error())) return made;
    if (!pause.wait()) return made.ok() ? std::move(status) : std::move(made);
  }
}

Status DirectoryStore::set(const std::string& key, std::string_view value, Deadline deadline) {
  const std::string path = path_of(key);
  Pause pause(pause_max_, deadline);
  for (;;) {
    const std::string temporary = temporary_beside(path);
    IC_CHECK(create(temporary, frame(value), deadline));
    Status renamed = files_->rename(temporary, path);
    if (renamed.ok()) break;
    (void)files_->remove(temporary);
    if (!may_heal(renamed.error()) || !pause.wait()) return renamed;
  }
  keep_spare(key);
  return {};
}

Result<std::optional<std::string>> DirectoryStore::get(const std::string& key, Deadline until) {
  const std::string path = path_of(key);
  Pause pause(pause_max_, until);
  for (;;) {
    // Twice: the second time after a fresh listing, which makes the client forget what it believed to be absent.
    for (int look = 0; look < 2; ++look) {
      auto bytes = files_->read(path, kFileBytesMax);
      if (!bytes.ok() && !may_heal(bytes.error())) return std::move(bytes).error();
      if (bytes.ok()) {
        if (auto value = unframe(*bytes)) return value;
      }
      if (look == 0) (void)files_->list(parent_of(path));
    }
    if (!pause.wait()) return std::optional<std::string>();
  }
}

Result<std::string> DirectoryStore::set_if_absent(const std::string& key, std::string_view value, Deadline deadline) {
  const std::string path = path_of(key);
  // The usual end of a round: someone was first.
  IC_TRY(auto there, get(key, steady_clock().now()));
  if (there) return std::move(*there);
  const std::string temporary = temporary_beside(path);
  const Status created = create(temporary, frame(value), deadline);
  if (!created.ok()) return set_in_spare(key, value, deadline, created.error());
  auto result = link_or_read(temporary, key, value, deadline);
  (void)files_->remove(temporary);
  return result;
}

Result<std::string> DirectoryStore::link_or_read(const std::string& temporary, const std::string& key,
                                                 std::string_view value, Deadline deadline) {
  const std::string path = path_of(key);
  Pause pause(pause_max_, deadline);
  for (;;) {
    const Status linked = files_->link(temporary, path);
    if (linked.ok()) return std::string(value);
    // The reply may have been lost, or another rank was first: the contents decide.
    IC_TRY(auto there, get(key, steady_clock().now()));
    if (there) return std::move(*there);
    const Error& error = linked.error();
    if (has_no_links(error))
      return Error(ErrorCode::unsupported, error.message())
          .with_errno(error.system_errno())
          .with_path(path)
          .with_hint(
              "The ranks meet in a directory on a file system with hard links: NFS, Lustre, GPFS, CephFS, or a "
              "local one for a single node");
    if ((error.system_errno() != EEXIST && !may_heal(error)) || !pause.wait()) return error;
  }
}

// The file system is full: the value goes where there is space for it already.
Result<std::string> DirectoryStore::set_in_spare(const std::string& key, std::string_view value, Deadline deadline,
                                                 const Error& cause) {
  const std::string framed = frame(value);
  const std::lock_guard lock(mutex_);
  if (!is_full(cause) || spare_.empty() || framed.size() > kSpareBytes) return cause;
  IC_CHECK(files_->overwrite(spare_, framed));
  auto result = link_or_read(spare_, key, value, deadline);
  (void)files_->remove(spare_);  // linked: its bytes are the verdict's now
  spare_.clear();
  return result;
}

// In the job's own folder, which goes with the job.
void DirectoryStore::keep_spare(const std::string& key) {
  const std::size_t slash = key.find('/');
  if (slash == std::string::npos || key.find('/', slash + 1) == std::string::npos) return;
  const std::lock_guard lock(mutex_);
  if (!spare_.empty()) return;
  const std::string path = path_of(key.substr(0, slash) + "/v/.spare-" + own_ + "-" + std::to_string(counter_++));
  Status status = files_->create(path, std::string(kSpareBytes, '\0'));
  if (!status.ok() && status.error().system_errno() == ENOENT && make_parents(path).ok())
    status = files_->create(path, std::string(kSpareBytes, '\0'));
  if (status.ok()) spare_ = path;  // else there is none: only an abort on a full file system misses it
}

void DirectoryStore::erase(const std::string& key) {
  (void)files_->remove(path_of(key));
}

bool DirectoryStore::erase_folder_if_empty(const std::string& folder) {
  return files_->remove_directory(path_of(folder)).ok();
}

void DirectoryStore::erase_folder(const std::string& folder) {
  erase_below(path_of(folder), 0);
  (void)files_->remove_directory(path_of(folder));
}

void DirectoryStore::erase_all() {
  erase_below(directory_, 0);
}

void DirectoryStore::erase_below(const std::string& path, int depth) {
  constexpr int kDepthMax = 4;  // JOB/in/KEY, and one to spare
  const auto names = files_->list(path);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const std::string below = path + "/" + name;
    if (files_->remove(below).ok()) continue;
    if (depth < kDepthMax) erase_below(below, depth + 1);
    (void)files_->remove_directory(below);
  }
}

Result<std::unique_ptr<Exchange>> open_in_directory(const std::string& directory, const std::string& name,
                                                    Member member, Deadline deadline,
                                                    std::shared_ptr<SharedFiles> files) {
  IC_CHECK(check_arguments(name, 0, 0));
  if (directory.empty() || name == "." || name == "..")
    return Error(ErrorCode::invalid_argument,
                 "a directory and a job's name are needed, not \"" + directory + "\" and \"" + name + "\"");
  return open_over_store(std::make_shared<DirectoryStore>(directory + "/" + name, member.world, std::move(files)),
                         member, deadline);
}

}  // namespace infercluster::exchange
