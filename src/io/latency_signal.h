// SPDX-License-Identifier: Apache-2.0
// How somebody's foreground I/O does, so that a drain beside it can give way.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"

namespace infercluster::io {

struct LatencyReading {
  Clock::Duration latency{};  // what those who wait see: the 99th percentile where it is known
  Clock::Duration target{};   // what they want; above zero
};

// One way of knowing. Any may be missing on a machine: then it has no readings. Thread rule: one thread at a time.
class LatencySignal {
 public:
  virtual ~LatencySignal() = default;
  // Nothing: as far as it knows, nobody waits.
  virtual std::optional<LatencyReading> read(Clock::TimePoint now) = 0;
};

// The latest latencies of one reader, for their 99th percentile. Thread-safe.
class LatencyWindow {
 public:
  explicit LatencyWindow(Clock::Duration span = std::chrono::milliseconds(500)) : span_(span) {}
  void add(Clock::TimePoint now, Clock::Duration latency);
  // Nothing: there was none for the window's span.
  [[nodiscard]] std::optional<Clock::Duration> p99(Clock::TimePoint now) const;

 private:
  struct Sample {
    Clock::TimePoint at;
    Clock::Duration latency{};
  };
  const Clock::Duration span_;
  mutable std::mutex mutex_;
  std::vector<Sample> samples_;  // a ring; guarded by mutex_
  std::size_t next_ = 0;         // guarded by mutex_
};

// This process's own foreground reads: whoever makes them adds them to `window`.
std::unique_ptr<LatencySignal> make_own_signal(std::shared_ptr<const LatencyWindow> window, Clock::Duration target);

// Where processes of one user on one node tell each other of their latency: INFERCLUSTER_LATENCY_DIR, else a folder in
// /dev/shm or in XDG_RUNTIME_DIR. Empty: there is no such place.
std::string latency_folder();

// Tells other processes of the node; they see it for a second. Its end takes it back. Thread rule: one thread.
class LatencyPublisher {
 public:
  // Makes the folder (0700) where it is missing. Errors: io.
  static Result<std::unique_ptr<LatencyPublisher>> open(const std::string& folder);
  ~LatencyPublisher();
  LatencyPublisher(const LatencyPublisher&) = delete;
  LatencyPublisher& operator=(const LatencyPublisher&) = delete;
  Status publish(Clock::TimePoint now, const LatencyReading& reading);

 private:
  LatencyPublisher(std::string path, Fd file) : path_(std::move(path)), file_(std::move(file)) {}
  std::string path_;
  Fd file_;
  std::uint64_t sequence_ = 0;
};

// What other processes publish there: of those that are behind their target most. Old or damaged entries are none.
std::unique_ptr<LatencySignal> make_node_signal(const std::string& folder);

// The mean time that reads of a block device (st_dev) took lately, whoever made them, from /sys/dev/block; the target
// is for that mean. Reads of 64 and fewer a second say nothing. `root` is "/" outside of tests.
std::unique_ptr<LatencySignal> make_disk_signal(std::uint64_t device, Clock::Duration target,
                                                const std::string& root = "/");

// /proc/pressure/io: the time in each second that some task stalled for I/O, the drain's own threads too; `target`: of
// a second. `root` is "/" outside of tests.
std::unique_ptr<LatencySignal> make_pressure_signal(Clock::Duration target, const std::string& root = "/");

}  // namespace infercluster::io
