// SPDX-License-Identifier: Apache-2.0
// One save, as its owner sees it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace infercluster::checkpoint {

enum class SaveStatus : std::uint8_t {
  scheduled,  // the ranks agreed on it; nothing is saved
  staged,     // copied: the caller may change its state; nothing is saved
  durable,    // committed: this checkpoint outlives the machine's power
  failed,     // there is no such checkpoint
};
std::string_view name_of(SaveStatus status);

struct SaveReport {
  std::uint64_t step = 0;
  std::uint64_t epoch = 0;
  std::uint64_t bytes = 0;           // that this rank writes
  std::uint64_t referred = 0;        // pieces that it need not write: its last checkpoint has them
  std::uint64_t bytes_referred = 0;  // their bytes
  std::uint64_t bytes_copied = 0;    // of segments that were referred to and that the file system did not link
  std::string link_refusal;          // why not; empty: it did. Where it never will, later saves write everything
  double stall_seconds = 0;          // that save() took
  double arena_wait_seconds = 0;     // of it: until earlier saves had left an arena, and it was there
  double agree_seconds = 0;          // of it: until all ranks had agreed
  double copy_seconds = 0;           // of it; of copies from devices that were only queued, what that took
  double write_seconds = 0;          // this rank's files, fsyncs included
  double durable_seconds = 0;        // from the call until the commit
  double throttled_seconds = 0;      // that its threads gave way to foreground I/O, together
  double lowest_rate = 0;            // bytes per second that this went down to, since the checkpointer opened; 0: not
  std::uint64_t requests_cut = 0;    // to 1 MiB, for the same reason
  bool direct = false;               // the page cache was left out
  std::string layout;                // how this rank's segment lies on a parallel file system; empty: on no such one
  bool plan_reused = false;
  std::uint64_t waves = 0;  // copies that the state took; more than one: it was larger than an arena, and the caller
                            // waited for writes
};

// Thread-safe.
class Save {
 public:
  [[nodiscard]] SaveStatus status() const;
  // Until it is durable or failed; the error then, each time it is asked for.
  Status wait() const;
  // True when it is durable or failed, at the latest after so long.
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds duration) const;
  // Until its state is copied, or it has failed; the error then.
  Status wait_until_staged() const;
  [[nodiscard]] SaveReport report() const;

  // For the checkpointer alone. The thread that saves gives its part of the report, the one that writes its own; a save
  // may be durable before its caller got to say that it is staged.
  void schedule(const SaveReport& report);
  void let_go(const SaveReport& report);
  void stage();  // logs it, the first time
  void finish(const SaveReport& report, std::optional<Error> error);

 private:
  [[nodiscard]] bool has_ended() const;  // mutex_ is held

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  SaveStatus status_ = SaveStatus::scheduled;  // guarded by mutex_
  SaveReport report_;                          // guarded by mutex_
  std::optional<Error> error_;                 // guarded by mutex_
};

}  // namespace infercluster::checkpoint
