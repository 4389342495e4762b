// SPDX-License-Identifier: Apache-2.0
// An I/O queue: reads under way at once, each into the caller's memory, each completed exactly once. A thread receives.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
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

// How a read ended: nothing writes to its memory any more. Called by the queue's thread, or by whoever ends the queue.
using ReadDone = std::function<void(Status)>;

struct BlockRead {
  std::uint64_t first_block = 0;
  std::uint32_t blocks = 0;
  std::span<std::byte> memory;  // of exactly these blocks
  ReadDone done;
};

// Thread rule: any thread may call anything.
class Queue {
 public:
  struct Options {
    std::uint32_t nsid = 1;
    unsigned block_bits = 12;
    std::uint16_t entries = 32;                                   // reads at once are one less
    std::chrono::nanoseconds deadline = std::chrono::seconds(5);  // of each read; then the connection counts as lost
  };
  // Takes over a channel on which Connect has succeeded.
  Queue(std::unique_ptr<Channel> channel, const Options& options);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Sends the read, after waiting until there is an entry. An error means that `done` is not called: the queue is lost.
  Status start(BlockRead read);

  // Ends the connection: what is under way completes with an error. Afterwards nothing is written to any read's memory.
  void end();
  // nullopt: it lives; else why it does not. Then a new queue is needed.
  [[nodiscard]] std::optional<Error> lost() const;

 private:
  struct Slot {
    bool busy = false;
    std::uint16_t generation = 0;  // of the command's identifier: answers to earlier commands are noticed
    BlockRead read;
    std::uint32_t received = 0;
    Clock::TimePoint deadline;
  };

  void run();
  Status serve();
  Status on_header();
  Status on_whole();
  Status complete(std::uint16_t cid, const nvme::CommandStatus& status);
  Result<Slot*> slot_of(std::uint16_t cid);
  void fail_all(const Error& why);
  [[nodiscard]] Clock::TimePoint next_deadline() const;
  [[nodiscard]] Error broken(std::string_view what) const;

  const Options options_;
  std::unique_ptr<Channel> channel_;
  std::mutex send_mutex_;
  mutable std::mutex mutex_;
  std::condition_variable entry_free_;
  std::vector<Slot> slots_;          // under mutex_, but for the memory of a read that data is being placed in
  std::vector<std::uint16_t> free_;  // under mutex_
  std::optional<Error> lost_;        // under mutex_
  bool ending_ = false;              // under mutex_
  std::thread thread_;
};

// What the completion of a read says, as an error.
Error error_of(const nvme::CommandStatus& status, const std::string& peer);

}  // namespace infercluster::initiator
