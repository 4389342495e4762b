// SPDX-License-Identifier: Apache-2.0
#include "load/block_pool.h"

#include <algorithm>

#include "base/units.h"

namespace infercluster::load {

class BlockPool::Lease {
 public:
  Lease(std::shared_ptr<BlockPool> pool, std::shared_ptr<memory::Arena> arena)
      : pool_(std::move(pool)), arena_(std::move(arena)) {}
  ~Lease() { pool_->released(arena_.get()); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

 private:
  const std::shared_ptr<BlockPool> pool_;
  const std::shared_ptr<memory::Arena> arena_;
};

BlockPool::BlockPool(std::uint64_t window, std::function<void()> changed)
    : window_(window), changed_(std::move(changed)) {}

Result<std::shared_ptr<memory::Arena>> BlockPool::acquire(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  // The smallest idle block that is large enough, and no more than twice as large as needed.
  Block* best = nullptr;
  for (Block& block : blocks_) {
    if (block.state != State::idle || block.arena->bytes() < bytes || block.arena->bytes() / 2 > bytes) continue;
    if (best == nullptr || block.arena->bytes() < best->arena->bytes()) best = &block;
  }
  if (best != nullptr) {
    best->state = State::filling;
    IC_CHECK(best->arena->exclude_from_fork());
    return best->arena;
  }
  while (in_window_ + bytes > window_) {
    const auto idle =
        std::find_if(blocks_.begin(), blocks_.end(), [](const Block& block) { return block.state == State::idle; });
    if (idle == blocks_.end()) return std::shared_ptr<memory::Arena>();
    in_window_ -= idle->arena->bytes();
    blocks_.erase(idle);
  }
  IC_TRY(std::shared_ptr<memory::Arena> arena, memory::Arena::allocate(bytes));
  blocks_.push_back({arena, State::filling});
  in_window_ += bytes;
  account_peak();
  return arena;
}

std::shared_ptr<void> BlockPool::lease(const std::shared_ptr<memory::Arena>& arena) {
  auto lease = std::make_shared<Lease>(shared_from_this(), arena);
  const std::lock_guard lock(mutex_);
  for (Block& block : blocks_) {
    if (block.arena == arena) block.state = State::leased;
  }
  return lease;
}

Result<std::uint64_t> BlockPool::donate_leased() {
  const std::lock_guard lock(mutex_);
  std::uint64_t count = 0;
  if (std::any_of(blocks_.begin(), blocks_.end(), [](const Block& block) { return block.state == State::idle; })) {
    return count;  // there is room after all
  }
  for (Block& block : blocks_) {
    if (block.state != State::leased) continue;
    block.state = State::donated;
    in_window_ -= block.arena->bytes();
    donated_ += block.arena->bytes();
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

void BlockPool::released(const memory::Arena* arena) {
  const std::lock_guard lock(mutex_);
  const auto block =
      std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& one) { return one.arena.get() == arena; });
  IC_ASSERT(block != blocks_.end());
  if (block->state == State::donated) {
    donated_ -= block->arena->bytes();
    blocks_.erase(block);  // the lease that is going holds the memory until we return
    return;
  }
  block->state = State::idle;
  if (changed_) changed_();
}

void BlockPool::account_peak() {
  peak_ = std::max(peak_, in_window_ + donated_);
}

}  // namespace infercluster::load
