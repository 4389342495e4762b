// SPDX-License-Identifier: Apache-2.0
#include "memory/ring.h"

namespace infercluster::memory {

Result<Ring> Ring::create(std::uint64_t slot_bytes, unsigned slots) {
  IC_ASSERT(slots > 0 && slot_bytes > 0 && slot_bytes % kArenaAlignment == 0);
  Ring ring;
  IC_TRY(ring.arena_, Arena::allocate(slot_bytes * slots));
  for (std::uint64_t step = 0; step < ring.arena_->steps(); ++step) IC_CHECK(ring.arena_->populate_step(step));
  ring.slot_bytes_ = slot_bytes;
  ring.lent_.assign(slots, false);
  for (unsigned slot = slots; slot-- > 0;) ring.free_.push_back(slot);
  return ring;
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
