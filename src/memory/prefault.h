// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "memory/arena.h"

namespace infercluster::memory {

// Threads that populate arenas ahead of the reads, in the order in which they were added: clearing pages beside the
// thread that submits reads hides it behind the device. Thread rule: add(), error() and stop() from one thread.
class Prefaulter {
 public:
  // `notify` is called from the threads after each populated step, and after an error.
  Prefaulter(unsigned threads, std::function<void()> notify);
  ~Prefaulter();
  Prefaulter(const Prefaulter&) = delete;
  Prefaulter& operator=(const Prefaulter&) = delete;

  // The first `bytes` of the arena. The threads start with the first call, and end when all is done or stop() is
  // called.
  void add(std::shared_ptr<Arena> arena, std::uint64_t bytes);
  // What kept a step from being populated, if anything did; nothing more is populated then.
  [[nodiscard]] std::optional<Error> error() const;
  void stop();

 private:
  struct Work {
    std::shared_ptr<Arena> arena;
    std::uint64_t next_step = 0;
    std::uint64_t last_step = 0;
  };
  void run();

  const unsigned threads_max_;
  const std::function<void()> notify_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> work_;       // guarded by mutex_
  bool stopping_ = false;       // guarded by mutex_
  std::optional<Error> error_;  // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace infercluster::memory
