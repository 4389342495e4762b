// SPDX-License-Identifier: Apache-2.0
#include "memory/ring.h"

namespace infercluster::memory {

Result<Ring> Ring::create(std::uint64_t slot_bytes, unsigned slots) {
  IC_TRY(Block block, allocate_on_host(slot_bytes * slots));
  for (std::uint64_t step = 0; step < block.arena->steps(); ++step) IC_CHECK(block.arena->populate_step(step));
  return Ring(std::move(block), slot_bytes);
}

Ring::Ring(Block block, std::uint64_t slot_bytes) : block_(std::move(block)), slot_bytes_(slot_bytes) {
  IC_ASSERT(slot_bytes_ > 0 && slot_bytes_ % kArenaAlignment == 0 && block_.span.bytes >= slot_bytes_);
  const auto slots = static_cast<unsigned>(block_.span.bytes / slot_bytes_);
  lent_.assign(slots, false);
  for (unsigned slot = slots; slot-- > 0;) free_.push_back(slot);
}

std::optional<unsigned> Ring::take() {
  if (free_.empty()) return std::nullopt;
  const unsigned slot = free_.back();
  free_.pop_back();
  lent_[slot] = true;
  return slot;
}

void Ring::give_back(unsigned slot) {
  IC_ASSERT(slot < lent_.size() && lent_[slot]);
  lent_[slot] = false;
  free_.push_back(slot);
}

}  // namespace infercluster::memory
