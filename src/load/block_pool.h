// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "memory/arena.h"

namespace infercluster::load {

// The blocks of a stream's window. A block is filled, leased to the consumer together with its tensors, and idle again
// when no tensor of it is referenced. Thread-safe; leases may be dropped on any thread, also after the stream is gone.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  // `window`: bytes of all blocks that are not donated. `changed` is called when a block became idle; it must not call
  // the pool.
  BlockPool(std::uint64_t window, std::function<void()> changed);

  // A block of at least `bytes`, reused where one is idle; null: the window is full.
  Result<std::shared_ptr<memory::Arena>> acquire(std::uint64_t bytes);
  // From now on the block belongs to whoever holds the lease.
  std::shared_ptr<void> lease(const std::shared_ptr<memory::Arena>& arena);
  // Takes every leased block out of the window, unless one is idle: its consumer keeps it. Returns how many; too_large
  // when more bytes than the window are kept so.
  Result<std::uint64_t> donate_leased();
  // No more calls of `changed`.
  void detach();

  [[nodiscard]] std::uint64_t peak_bytes() const;  // of all blocks, donated ones included

 private:
  enum class State : std::uint8_t { idle, filling, leased, donated };
  struct Block {
    std::shared_ptr<memory::Arena> arena;
    State state = State::idle;
  };
  class Lease;
  void released(const memory::Arena* arena);
  void account_peak();

  const std::uint64_t window_;
  mutable std::mutex mutex_;
  std::function<void()> changed_;  // guarded by mutex_
  std::vector<Block> blocks_;      // guarded by mutex_
  std::uint64_t in_window_ = 0;    // bytes; guarded by mutex_
  std::uint64_t donated_ = 0;      // bytes that consumers hold now; guarded by mutex_
  std::uint64_t peak_ = 0;         // guarded by mutex_
};

}  // namespace infercluster::load
