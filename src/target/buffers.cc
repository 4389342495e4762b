// SPDX-License-Identifier: Apache-2.0
#include "target/buffers.h"

#include "base/assert.h"

namespace infercluster::target {

Result<Buffers> Buffers::allocate(std::size_t count, std::uint64_t bytes_each) {
  IC_ASSERT(count > 0 && bytes_each % memory::kArenaAlignment == 0);
  Buffers buffers;
  IC_TRY(buffers.arena_, memory::Arena::allocate(count * bytes_each));
  buffers.free_.reserve(count);
  // The first is taken first: memory that was never needed is never touched.
  for (std::size_t i = count; i-- > 0;) buffers.free_.push_back(buffers.arena_->data() + i * bytes_each);
  return buffers;
}

std::byte* Buffers::take() {
  if (free_.empty()) return nullptr;
  std::byte* buffer = free_.back();
  free_.pop_back();
  return buffer;
}

}  // namespace infercluster::target
