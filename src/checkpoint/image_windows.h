// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/result.h"
#include "checkpoint/device_copies.h"
#include "checkpoint/snapshot.h"

namespace infercluster::checkpoint {

// A part of a segment's image in memory. Begins at a multiple of 64 KiB of the file; its bytes are such a multiple too,
// but for the last. The memory may be used up to the next multiple of 4096.
struct ImageWindow {
  std::uint64_t begin = 0;  // file offset
  std::uint64_t bytes = 0;
  SnapshotArenas::Lease snapshot;
  std::shared_ptr<Arrival> arrival;  // of what devices copy to it, to be waited for; null: it is there

  ImageWindow() = default;
  ImageWindow(std::uint64_t begin_at, std::uint64_t byte_count) : begin(begin_at), bytes(byte_count) {}
  ImageWindow(ImageWindow&&) noexcept = default;
  ImageWindow& operator=(ImageWindow&& other) noexcept {
    arrival = std::move(other.arrival);  // first: nothing is copied to memory that goes
    snapshot = std::move(other.snapshot);
    begin = other.begin;
    bytes = other.bytes;
    return *this;
  }
  ~ImageWindow() = default;
};

// From the thread that copies to the one that writes. Thread-safe.
class ImageWindows {
 public:
  void push(ImageWindow window);  // dropped at once after abandon()
  void fail(Error error);         // nothing more comes: copying failed
  // Waits, also for what devices copy to the window. Windows in order, then the error.
  Result<std::optional<ImageWindow>> pop();
  // Nobody writes any more: what is there and what comes is dropped, so that the copying thread does not wait for room.
  void abandon();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ImageWindow> windows_;  // guarded by mutex_
  std::optional<Error> error_;       // guarded by mutex_
  bool abandoned_ = false;           // guarded by mutex_
};

}  // namespace infercluster::checkpoint
