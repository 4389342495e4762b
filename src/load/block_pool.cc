// SPDX-License-Identifier: Apache-2.0
#include "load/block_pool.h"

#include <algorithm>

#include "base/units.h"

namespace infercluster::load {

class BlockPool::Lease {
 public:
  Lease(std::shared_ptr<BlockPool> pool, memory::Block block) : pool_(std::move(pool)), block_(std::move(block)) {}
  ~Lease() { pool_->released(block_); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

 private:
  const std::shared_ptr<BlockPool> pool_;
  const memory::Block block_;
};

BlockPool::BlockPool(std::shared_ptr<Target> target, std::uint64_t window, std::function<void()> changed)
    : target_(std::move(target)), window_(window), changed_(std::move(changed)) {}

Result<std::optional<Acquired>> BlockPool::acquire(std::uint64_t bytes) {
  std::vector<memory::Block> let_go;  // without the lock: memory may be the caller's, whose ways are not known
  {
    const std::lock_guard lock(mutex_);
    if (Entry* const idle = smallest_idle(bytes)) {
      idle->state = State::filling;
      if (idle->block.arena) IC_CHECK(idle->block.arena->exclude_from_fork());
      return std::optional(Acquired{idle->block, std::move(idle->busy_until)});
    }
    while (in_window_ + bytes > window_) {
      const auto idle =
          std::find_if(blocks_.begin(), blocks_.end(), [](const Entry& entry) { return entry.state == State::idle; });
      if (idle == blocks_.end()) return std::optional<Acquired>();
      in_window_ -= idle->block.span.bytes;
      let_go.push_back(std::move(idle->block));
      blocks_.erase(idle);
    }
  }
  let_go.clear();
  IC_TRY(memory::Block block, target_->allocate(bytes));
  const std::lock_guard lock(mutex_);
  in_window_ += block.span.bytes;
  blocks_.push_back({block, State::filling, nullptr});
  account_peak();
  return std::optional(Acquired{std::move(block), nullptr});
}

// Large enough, and no more than twice as large as needed.
BlockPool::Entry* BlockPool::smallest_idle(std::uint64_t bytes) {
  Entry* best = nullptr;
  for (Entry& entry : blocks_) {
    const std::uint64_t size = entry.block.span.bytes;
    if (entry.state != State::idle || size < bytes || size / 2 > bytes) continue;
    if (best == nullptr || size < best->block.span.bytes) best = &entry;
  }
  return best;
}

std::shared_ptr<void> BlockPool::lease(const memory::Block& block) {
  auto lease = std::make_shared<Lease>(shared_from_this(), block);
  const std::lock_guard lock(mutex_);
  find(block)->state = State::leased;
  return lease;
}

Result<std::uint64_t> BlockPool::donate_leased() {
  const std::lock_guard lock(mutex_);
  std::uint64_t count = 0;
  if (std::any_of(blocks_.begin(), blocks_.end(), [](const Entry& entry) { return entry.state == State::idle; })) {
    return count;  // there is room after all
  }
  for (Entry& entry : blocks_) {
    if (entry.state != State::leased) continue;
    entry.state = State::donated;
    in_window_ -= entry.block.span.bytes;
    donated_ += entry.block.span.bytes;
    ++count;
  }
  if (donated_ > window_) {
    return Error(ErrorCode::too_large, "the consumer of the stream keeps tensors in blocks of " +
                                           format_bytes(donated_) + ", more than the window of " +
                                           format_bytes(window_))
        .with_hint("Copy what you keep, load instead of streaming, or give a larger memory window");
  }
  return count;
}

void BlockPool::detach() {
  const std::lock_guard lock(mutex_);
  changed_ = nullptr;
}

std::uint64_t BlockPool::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

void BlockPool::released(const memory::Block& block) {
  // A mark that cannot be had: nobody can say when the block is free, so it is not used again. Its owner frees it.
  auto mark = target_->mark();
  const std::lock_guard lock(mutex_);
  const auto entry = find(block);
  if (entry->state == State::donated) {
    donated_ -= entry->block.span.bytes;
    blocks_.erase(entry);  // the lease that is going holds the memory until we return
    return;
  }
  if (mark.ok()) {
    entry->state = State::idle;
    entry->busy_until = std::move(*mark);
  } else {
    in_window_ -= entry->block.span.bytes;
    blocks_.erase(entry);
  }
  if (changed_) changed_();
}

std::vector<BlockPool::Entry>::iterator BlockPool::find(const memory::Block& block) {
  const auto entry = std::find_if(blocks_.begin(), blocks_.end(),
                                  [&](const Entry& one) { return one.block.span.address == block.span.address; });
  IC_ASSERT(entry != blocks_.end());
  return entry;
}

void BlockPool::account_peak() {
  peak_ = std::max(peak_, in_window_ + donated_);
}

}  // namespace infercluster::load
