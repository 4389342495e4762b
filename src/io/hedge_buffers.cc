// SPDX-License-Identifier: Apache-2.0
#include "io/hedge_buffers.h"

#include <algorithm>

namespace infercluster::io {

std::size_t HedgeBuffers::class_of(std::uint32_t length) {
  std::size_t index = 0;
  while ((std::uint64_t{kSmallest} << index) < length) ++index;
  return index;
}

void HedgeBuffers::drop_idle() {
  for (auto& buffers : free_) buffers.clear();
  idle_ = 0;
}

std::byte* HedgeBuffers::take(std::uint32_t length, BufferShare share) {
  const std::size_t index = class_of(length);
  const std::uint64_t size = std::uint64_t{kSmallest} << index;
  std::uint64_t& used = used_[static_cast<std::size_t>(share)];
  if (used != 0 && used + size > bytes_max_ / 2) return nullptr;
  if (free_[index].empty()) {
    if (bytes_in_use() + idle_ + size > bytes_max_) drop_idle();
    const std::size_t alignment = std::min<std::size_t>(size, 65536);
    Buffer fresh(static_cast<std::byte*>(std::aligned_alloc(alignment, size)));
    if (!fresh) return nullptr;
    used += size;
    return fresh.release();
  }
  std::byte* buffer = free_[index].back().release();
  free_[index].pop_back();
  idle_ -= size;
  used += size;
  return buffer;
}

void HedgeBuffers::give_back(std::byte* buffer, std::uint32_t length, BufferShare share) {
  const std::size_t index = class_of(length);
  const std::uint64_t size = std::uint64_t{kSmallest} << index;
  used_[static_cast<std::size_t>(share)] -= size;
  idle_ += size;
  free_[index].push_back(Buffer(buffer));
}

}  // namespace infercluster::io
