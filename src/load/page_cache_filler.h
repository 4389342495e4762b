// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "io/governor.h"
#include "os/file.h"

namespace infercluster::load {

// Fills the page cache behind direct loads, at fill priority, so that a second start finds the files there. One per
// process; outlives jobs, so that a caller who drops a job loses nothing. Thread-safe. The destructor stops it.
class PageCacheFiller {
 public:
  struct File {
    std::string path;           // opened when its turn comes: a load of a thousand files does not keep them all open
    os::FileIdentity identity;  // another file at that path is left alone
  };
  using Ticket = std::uint64_t;

  // A null governor limits nothing. `filled` is called with the bytes of each step, on a thread of the filler's.
  explicit PageCacheFiller(io::Governor* governor, std::function<void(std::uint64_t)> filled = {});
  ~PageCacheFiller();
  PageCacheFiller(const PageCacheFiller&) = delete;
  PageCacheFiller& operator=(const PageCacheFiller&) = delete;

  Ticket add(std::vector<File> files);
  // True once all files of this ticket are filled (or gave up: filling is best effort, and logged at debug level).
  bool wait_for(Ticket ticket, std::chrono::nanoseconds timeout);

 private:
  void run();
  void fill(const File& file);

  io::Governor* const governor_;
  const std::function<void(std::uint64_t)> filled_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<Ticket, File>> queue_;  // guarded by mutex_; the front is being filled
  Ticket last_ticket_ = 0;                     // guarded by mutex_
  bool stopping_ = false;                      // guarded by mutex_
  std::thread thread_;                         // started by the first add()
};

}  // namespace infercluster::load
