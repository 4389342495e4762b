// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/staging_pool.h"

#include <algorithm>
#include <utility>

#include "checkpoint/snapshot.h"

namespace infercluster::checkpoint {
namespace {

constexpr std::size_t kBlocks = 2;

Result<std::shared_ptr<memory::Arena>> populated(std::uint64_t bytes) {
  IC_TRY(auto arena, memory::Arena::allocate(std::max<std::uint64_t>(bytes, memory::kArenaAlignment)));
  IC_CHECK(populate(*arena));
  return arena;
}

}  // namespace

Result<StagingPool::Block> StagingPool::acquire(std::uint64_t bytes) {
  std::shared_ptr<memory::Arena> arena;
  {
    const std::lock_guard lock(kept_->mutex);
    auto& free = kept_->free;
    // By turns: who was just saved from one may let go of it a moment later than the next save asks.
    if (kept_->blocks >= kBlocks && !free.empty()) {
      const auto fits = std::find_if(free.begin(), free.end(), [bytes](const auto& a) { return a->bytes() >= bytes; });
      if (fits != free.end()) arena = *fits;
      free.erase(fits != free.end() ? fits : free.begin());  // that one is too small for what is saved by now
      --kept_->blocks;
    }
    ++kept_->blocks;
  }
  if (arena == nullptr) {
    auto made = populated(bytes);
    if (!made.ok()) {
      const std::lock_guard lock(kept_->mutex);
      --kept_->blocks;
      return std::move(made).error();
    }
    arena = std::move(made).value();
  }
  Block block;
  block.memory = {arena->data(), arena->bytes()};
  block.owner = std::shared_ptr<void>(arena.get(), [arena, kept = kept_](void*) {
    const std::lock_guard lock(kept->mutex);
    if (kept->blocks <= kBlocks) {
      kept->free.push_back(arena);
    } else {
      --kept->blocks;
    }
  });
  return block;
}

void StagingPool::trim() {
  const std::lock_guard lock(kept_->mutex);
  kept_->blocks -= kept_->free.size();
  kept_->free.clear();
}

}  // namespace infercluster::checkpoint
