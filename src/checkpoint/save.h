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
  fast,     // durable on the fast tier: outlives the job and the power, not the loss of a node; the root has it not yet
  durable,  // committed at the root: this checkpoint outlives the machine's power
  failed,   // the root has no such checkpoint
};
std::string_view name_of(SaveStatus status);

// What became of a save on a tier.
enum class TierStatus : std::uint8_t { pending, durable, failed, left_out };
std::string_view name_of(TierStatus status);
enum class Tier : std::uint8_t {
  fast,  // where there is none, or it was left out: the root
  root,
};

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
  std::optional<TierStatus> fast;   // none: there is no fast tier
  std::string notice;               // why the fast tier was left out; empty: it was not
  double fast_seconds = 0;          // from the call until it was durable on the fast tier
  double tier_wait_seconds = 0;     // of the stall: until earlier saves had left the fast tier for the root
  double drain_seconds = 0;         // that the way from the fast tier to the root took
  std::uint64_t bytes_drained = 0;  // by this rank
  std::uint64_t bytes_resumed = 0;  // of them: there already, from a drain that was interrupted
  std::uint64_t waves = 0;  // copies that the state took; more than one: it was larger than an arena, and the caller
                            // waited for writes
};

// Thread-safe.
class Save {
 public:
  [[nodiscard]] SaveStatus status() const;
  [[nodiscard]] TierStatus status_on(Tier tier) const;
  // Until it is durable on that tier, or failed; the error then, each time it is asked for.
  Status wait(Tier tier = Tier::root) const;
  // True when it is so, at the latest after so long.
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds duration, Tier tier = Tier::root) const;
  // Until its state is copied, or it has failed; the error then.
  Status wait_until_staged() const;
  [[nodiscard]] SaveReport report() const;

  // For the checkpointer alone. The thread that saves gives its part of the report, the one that writes its own; a save
  // may be durable before its caller got to say that it is staged.
  void schedule(const SaveReport& report);
  void let_go(const SaveReport& report);
  void stage();  // logs it, the first time
  void reach_fast(const SaveReport& report);
  void finish(const SaveReport& report, std::optional<Error> error);

 private:
  [[nodiscard]] TierStatus status_on_locked(Tier tier) const;
  void take(const SaveReport& report);  // what the thread that writes knows

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  SaveStatus status_ = SaveStatus::scheduled;  // guarded by mutex_
  SaveReport report_;                          // guarded by mutex_
  std::optional<Error> error_;                 // guarded by mutex_
};

}  // namespace infercluster::checkpoint
