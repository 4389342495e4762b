// SPDX-License-Identifier: Apache-2.0
// What extents are read from. A source set holds the sources of one extent, in the order in which to try them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "io/backend.h"
#include "os/file.h"
#include "os/mount.h"

namespace infercluster::io {

// One try to read [offset, offset + length) of a source into memory.
struct Attempt {
  std::uint64_t token = 0;
  std::uint64_t offset = 0;
  std::uint32_t length = 0;
  std::byte* memory = nullptr;
};

// How a source that has no descriptor of its own reports: exactly once per attempt, from any thread, bytes read (may be
// short) or -errno.
using AttemptDone = std::function<void(std::uint64_t token, std::int64_t result)>;

enum class ErrorAction : std::uint8_t {
  retry,  // the source changed its ways (direct -> buffered): try the same attempt again
  fail,   // this source cannot; the next one may
};

// Lifetime: an attempt that lost against a hedge, and reads into a buffer of the engine's, may go on after its transfer
// is quiesced. The engine does not call the source for it any more, but a source that reads by start() must keep what
// its own reads need until they have reported.
// Thread rule: the engine's thread alone calls it, except where said otherwise.
class Source {
 public:
  virtual ~Source() = default;
  [[nodiscard]] virtual const std::string& name() const = 0;  // for messages: a path, a URL, a peer
  [[nodiscard]] virtual std::uint64_t size() const = 0;       // bytes

  // What offset, length and memory of an attempt must be multiples of, at present (1: nothing).
  [[nodiscard]] virtual std::uint32_t alignment() const { return 1; }

  // A source over a descriptor gives the operation for the backend; others give nullopt and do the read themselves in
  // start().
  virtual std::optional<ReadOperation> operation(const Attempt& attempt) = 0;
  virtual void start(const Attempt& attempt, const AttemptDone& done);

  // A read that can be taken back: after abort() returns, the attempt's memory is written no more, and it completes
  // soon (with -ECANCELED, or what it had). Always the same answer, and only for sources that read by start(): a
  // backend's operation cannot be taken back.
  [[nodiscard]] virtual bool abortable() const { return false; }
  virtual void abort(std::uint64_t token);

  virtual ErrorAction on_error(int system_errno);
  // What to tell the user beside this error when it stands; empty: nothing.
  [[nodiscard]] virtual std::string hint_for(int system_errno) const;
};

enum class FileMode : std::uint8_t { direct, buffered, resident };
std::string_view name_of(FileMode mode);

enum class DirectPolicy : std::uint8_t {
  automatic,  // by residency and what the mount can do
  always,     // strict: a mount that refuses is an error that names it
  never,
};

// A local (or mounted) file. Chooses its mode at open, and gives up direct I/O once when a read is refused with EINVAL,
// EOPNOTSUPP or ENOTSUP. mode() and reason() may be read by any thread once the job is over; the engine's thread any
// time.
class FileSource final : public Source {
 public:
  struct Options {
    DirectPolicy direct = DirectPolicy::automatic;
    std::uint64_t begin = 0;  // the range that will be read: its residency decides
    std::uint64_t end = UINT64_MAX;
  };
  // Opens `path` unless `fd` is given: a descriptor of the same file for buffered reading. Direct I/O needs a second
  // descriptor, which is there only from the first direct operation to close_direct(); where none is to be had by then
  // (EMFILE, ENFILE), reads become buffered, or fail when direct ones were demanded.
  static Result<std::unique_ptr<FileSource>> open(const std::string& path, std::shared_ptr<const Fd> fd,
                                                  const Options& options);

  [[nodiscard]] const std::string& name() const override { return path_; }
  [[nodiscard]] std::uint64_t size() const override { return identity_.size; }
  [[nodiscard]] std::uint32_t alignment() const override;
  std::optional<ReadOperation> operation(const Attempt& attempt) override;
  void start(const Attempt& attempt, const AttemptDone& done) override;
  ErrorAction on_error(int system_errno) override;
  [[nodiscard]] std::string hint_for(int system_errno) const override;

  // Every transfer of this source is quiesced. Another one may follow all the same.
  void close_direct() { direct_.reset(); }

  [[nodiscard]] FileMode mode() const { return mode_; }
  [[nodiscard]] const std::string& reason() const { return reason_; }  // why this mode, in words, with figures
  [[nodiscard]] const os::FileIdentity& identity() const { return identity_; }
  [[nodiscard]] const os::FileSystem& file_system() const { return file_system_; }
  [[nodiscard]] const Fd& buffered_fd() const { return *buffered_; }
  // The error `changed` when the file is no longer the one that was opened (fstat, and the path still leads to it).
  [[nodiscard]] Status check_unchanged() const;

 private:
  FileSource() = default;
  Status choose_mode(const Options& options);
  Status open_direct();
  bool ensure_direct();
  void give_up_direct(std::string reason);

  std::string path_;
  std::shared_ptr<const Fd> buffered_;
  Fd direct_;             // invalid unless direct I/O is open
  int direct_errno_ = 0;  // why it could not be opened although it was demanded
  os::FileIdentity identity_;
  os::FileSystem file_system_;
  os::DirectLimits limits_;
  DirectPolicy policy_ = DirectPolicy::automatic;
  FileMode mode_ = FileMode::buffered;
  std::string reason_;
  bool gave_up_direct_ = false;  // at a read: operations that were under way then fail once more, and are not lost
};

using SourceSet = std::vector<Source*>;  // not owned; the job owns its sources

}  // namespace infercluster::io
