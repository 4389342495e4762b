// SPDX-License-Identifier: Apache-2.0
// A remote namespace that is read from: what is lost is connected anew, and reads outlive the connections they were on.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/result.h"
#include "initiator/association.h"
#include "initiator/backoff.h"
#include "initiator/host_counters.h"
#include "initiator/options.h"
#include "initiator/url.h"

namespace infercluster::initiator {

// How a read ended: nothing writes to its memory any more. Called by a thread of the host's, which it must not block.
using ReadDone = std::function<void(const Status&)>;

struct BlockRead {
  std::uint64_t first_block = 0;
  std::uint32_t blocks = 0;
  std::span<std::byte> memory;  // of exactly these blocks
  ReadDone done;
  // From start() on; then the read fails with timed_out. Without: the host's.
  std::optional<std::chrono::nanoseconds> deadline = std::nullopt;
};

// A lost connection is made anew, at once and then with delays that grow, until the host is destroyed or the target
// refuses for good: it does not know the subsystem or the namespace, does not admit the host, or has another namespace
// by its UUID or its blocks. From then on every read fails with that error.
// Thread rule: any thread may call anything.
class Host final : private Queue::Owner {
 public:
  // Connects once. Errors: those of Association.
  static Result<std::unique_ptr<Host>> connect(const Url& url, const HostOptions& options);
  // Reads that are not done fail with cancelled. Waits for a target that does not answer for half a second at most.
  ~Host() override;
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  [[nodiscard]] const Url& url() const { return url_; }
  [[nodiscard]] std::uint64_t blocks() const { return namespace_.blocks; }
  [[nodiscard]] std::uint32_t block_bytes() const { return 1U << namespace_.block_bits; }
  [[nodiscard]] const nvme::Uuid& uuid() const { return namespace_.uuid; }
  [[nodiscard]] std::uint32_t read_bytes_max() const { return namespace_.read_bytes_max; }  // of one command
  // As the first connection found it.
  [[nodiscard]] const nvme::IdentifyController& controller() const { return controller_; }
  [[nodiscard]] const HostCounters& counters() const { return counters_; }

  // One read of at most read_bytes_max(). Never waits for the target: what does not fit into the queues, or comes while
  // there is no connection, waits here. `done` is called exactly once, unless this returns an error: too_large (there
  // are kWaitingMax reads waiting), or the refusal for good.
  Status start(BlockRead read);
  static constexpr std::size_t kWaitingMax = 65'536;

  // Reads bytes [offset, offset + into.size()) of the namespace: any range, split at the limits, many at a time. Blocks
  // that are wanted in part are read into memory of its own. Errors: invalid_argument (beyond the end); those of reads.
  Status read(std::uint64_t offset, std::span<std::byte> into);

 private:
  struct Record {  // of a read that is not done
    QueuedRead queued;
    ReadDone done;
    std::chrono::nanoseconds deadline{};
    unsigned tries = 0;         // that failed by themselves
    std::optional<Error> last;  // what ended the last connection it was on
  };
  Host(Url url, const HostOptions& options);

  void read_ended(void* ticket, const ReadEnd& end) override;
  void queue_lost(const Error& why) override;
  void digest_wrong() override { counters_.digest_errors.add(); }

  using Lock = std::unique_lock<std::mutex>;
  // nullopt: it is tried again.
  std::optional<Status> verdict(Record& record, const ReadEnd& end);
  void finish(Lock& lock, Record& record, const Status& status);
  void dispatch(Lock& lock);
  void note_deadline(const Record& record);
  void keep();
  void lose(const Error& why);
  void connect_anew(Lock& lock);
  Result<std::shared_ptr<Association>> attempt();
  void fail_waiting(Lock& lock, const Error& why);
  void watch_deadlines();
  [[nodiscard]] Error missed(const Record& record) const;
  [[nodiscard]] Error ended() const;

  const Url url_;
  const HostOptions options_;
  nvme::ConnectData self_;
  nvme::IdentifyController controller_;
  Namespace namespace_;
  HostCounters counters_;

  mutable std::mutex mutex_;                  // guards all down to ended_
  std::shared_ptr<Association> association_;  // null: being connected anew, or never again
  bool lost_ = false;                         // and the keeper is to see to it
  bool proved_ = false;                       // a read came back since
  std::optional<Error> why_lost_;             // or why connecting anew failed last
  std::optional<Error> refused_;              // for good
  std::deque<Record> records_;                // all there ever were at once
  std::vector<Record*> free_;
  std::deque<Record*> waiting_;
  Clock::TimePoint first_deadline_ = Clock::TimePoint::max();  // of those waiting, or before it
  bool ended_ = false;
  std::condition_variable keeper_wakes_;
  std::condition_variable watch_wakes_;
  std::atomic<bool> cancelled_{false};
  Backoff backoff_;  // the keeper's own
  std::thread keeper_;
  std::thread watch_;
};

}  // namespace infercluster::initiator
