// SPDX-License-Identifier: Apache-2.0
// An I/O queue: reads under way at once, each into the caller's memory, each ended exactly once. A thread receives.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "initiator/channel.h"

namespace infercluster::initiator {

struct QueuedRead {
  std::uint64_t first_block = 0;
  std::uint32_t blocks = 0;
  std::span<std::byte> memory;  // of exactly these blocks
  Clock::TimePoint deadline;
  void* ticket = nullptr;  // the owner's, comes back with the end
};

// How a read ended. Nothing writes to its memory any more.
struct ReadEnd {
  enum class Again : std::uint8_t {
    no,         // whole, or failed for good
    counted,    // it failed by itself: too often means that it does not work
    uncounted,  // its connection was lost
  };
  Status status;
  Again again = Again::no;
};

// Thread rule: any thread may call anything.
class Queue {
 public:
  // Called by the queue's thread, with no lock held.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void read_ended(void* ticket, const ReadEnd& end) = 0;
    // The connection is lost. Its reads have not been ended yet: they are, right after.
    virtual void queue_lost(const Error& why) = 0;
    virtual void digest_wrong() = 0;
  };
  struct Options {
    std::uint32_t nsid = 1;
    unsigned block_bits = 12;
    std::uint16_t entries = 32;  // reads at once are one less
    // With reads under way and nothing received for this long, the connection counts as lost.
    std::chrono::nanoseconds silence_max = std::chrono::seconds(1);
  };
  // Takes over a channel on which Connect has succeeded.
  Queue(std::unique_ptr<Channel> channel, const Options& options, Owner& owner);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  enum class Start : std::uint8_t {
    started,  // the owner hears of its end
    full,     // no entry is free
    lost,
  };
  // Never waits for the target: what the socket does not take, the thread sends later.
  Start try_start(const QueuedRead& read);
  [[nodiscard]] bool has_room() const;

  // Ends the connection: what is under way ends with its connection lost.
  void end();
  // Waits for the thread, which has then ended every read. Not by the thread itself.
  void join();

 private:
  struct Slot {
    bool busy = false;
    std::uint16_t generation = 0;  // of the command's identifier: answers to earlier commands are noticed
    QueuedRead read;
    std::uint32_t received = 0;
  };

  void run();
  Status serve();
  Status check_time(Clock::TimePoint now, Clock::TimePoint heard);
  Status on_header();
  Status on_whole();
  Status complete(std::uint16_t cid, const nvme::CommandStatus& status);
  Status flush();
  Result<Slot*> slot_of(std::uint16_t cid, std::uint32_t field);
  void end_all(const Error& why);
  [[nodiscard]] Clock::Duration tick() const;

  const Options options_;
  Owner& owner_;
  std::unique_ptr<Channel> channel_;
  std::mutex send_mutex_;
  std::vector<std::byte> unsent_;  // under send_mutex_: what the socket did not take
  std::atomic<bool> has_unsent_{false};
  mutable std::mutex mutex_;
  std::vector<Slot> slots_;          // under mutex_, but for the memory of a read that data is being placed in
  std::vector<std::uint16_t> free_;  // under mutex_
  Clock::TimePoint busy_since_;      // under mutex_: since when there have been reads
  bool lost_ = false;                // under mutex_
  void* at_fault_ = nullptr;         // the thread's own: the read whose data came damaged
  std::thread thread_;
};

}  // namespace infercluster::initiator
