// SPDX-License-Identifier: Apache-2.0
// A queue of operations and the thread that runs them, one after the other. Streams run beside each other: nothing but
// a Point orders operations of different streams.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

namespace infercluster::gpu_double {

// While it is shut, no stream begins an operation: a test can look at a moment at which nothing has arrived yet.
class Gate {
 public:
  void shut();
  void open();
  void pass();  // waits while shut; orders nothing when it is not

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> shut_{false};  // written with mutex_ held
};
Gate& gate();

// Waits until no stream has a thread any more.
void wait_for_no_threads();

// Thread-safe. Each stream has a lock of its own, and waiting takes no other: ThreadSanitizer then sees no order
// between streams that the program did not ask for.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  using Sequence = std::uint64_t;  // the number of an operation in its stream, from 1

  static std::shared_ptr<Stream> create() { return std::shared_ptr<Stream>(new Stream); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() = default;

  // Queues an operation; the first one starts the thread. Nothing when the stream is closed.
  std::optional<Sequence> submit(std::function<void()> operation);
  [[nodiscard]] Sequence submitted() const;
  [[nodiscard]] bool reached(Sequence sequence) const;
  void wait(Sequence sequence) const;
  // No operation comes any more. An idle stream's thread has ended on return; a busy one runs what is queued and ends
  // by itself, as cuStreamDestroy has it. Returns whether it was idle.
  bool close();

 private:
  Stream() = default;
  void run();

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;  // guarded by mutex_
  Sequence submitted_ = 0;                   // guarded by mutex_
  Sequence completed_ = 0;                   // guarded by mutex_
  bool closed_ = false;                      // guarded by mutex_
  std::thread thread_;                       // guarded by mutex_
};

// The place in a stream behind its operation `sequence`. The empty point is always reached.
struct Point {
  std::shared_ptr<Stream> stream;
  Stream::Sequence sequence = 0;

  [[nodiscard]] bool reached() const { return stream == nullptr || stream->reached(sequence); }
  void wait() const {
    if (stream != nullptr) stream->wait(sequence);
  }
};

}  // namespace infercluster::gpu_double
