// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "load/runner.h"
#include "load/target.h"

namespace infercluster::load {

// The blocks of a stream's window. A block is filled, leased to the consumer together with its tensors, and idle again
// when no tensor of it is referenced; on a device it is written again only behind what the consumer had queued then.
// Thread-safe; leases may be dropped on any thread, also after the stream is gone.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  // `window`: bytes of all blocks that are not donated. `changed` is called when a block became idle; it must not call
  // the pool.
  BlockPool(std::shared_ptr<Target> target, std::uint64_t window, std::function<void()> changed);

  // Thread rule: one thread acquires.
  // A block of at least `bytes`, reused where one is idle; nothing: the window is full.
  Result<std::optional<Acquired>> acquire(std::uint64_t bytes);
  // From now on the block belongs to whoever holds the lease.
  std::shared_ptr<void> lease(const memory::Block& block);
  // Takes every leased block out of the window, unless one is idle: its consumer keeps it. Returns how many; too_large
  // when more bytes than the window are kept so.
  Result<std::uint64_t> donate_leased();
  // No more calls of `changed`.
  void detach();

  [[nodiscard]] std::uint64_t peak_bytes() const;  // of all blocks, donated ones included

 private:
  enum class State : std::uint8_t { idle, filling, leased, donated };
  struct Entry {
    memory::Block block;
    State state = State::idle;
    std::shared_ptr<const memory::Mark> busy_until;  // of an idle block
  };
  class Lease;
  void released(const memory::Block& block);
  Entry* smallest_idle(std::uint64_t bytes);
  std::vector<Entry>::iterator find(const memory::Block& block);
  void account_peak();

  const std::shared_ptr<Target> target_;
  const std::uint64_t window_;
  mutable std::mutex mutex_;
  std::function<void()> changed_;  // guarded by mutex_
  std::vector<Entry> blocks_;      // guarded by mutex_
  std::uint64_t in_window_ = 0;    // bytes; guarded by mutex_
  std::uint64_t donated_ = 0;      // bytes that consumers hold now; guarded by mutex_
  std::uint64_t peak_ = 0;         // guarded by mutex_
};

}  // namespace infercluster::load
