// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/result.h"
#include "memory/arena.h"
#include "memory/span.h"

namespace infercluster::memory {

// Memory that tensors live in, on the host or on a device. Whoever holds `owner` keeps it.
struct Block {
  Span span;
  std::shared_ptr<void> owner;
  std::shared_ptr<Arena> arena;  // of host memory of ours: populated ahead of reads, kept from forks; null on a device

  explicit operator bool() const { return owner != nullptr; }
};

// At least so many bytes, aligned to kArenaAlignment on the host, and to 256 on a device.
using Allocate = std::function<Result<Block>(std::uint64_t bytes)>;

inline Result<Block> allocate_on_host(std::uint64_t bytes) {
  IC_TRY(std::shared_ptr<Arena> arena, Arena::allocate(bytes));
  Block block{arena->span(), arena, nullptr};
  block.arena = std::move(arena);
  return block;
}

}  // namespace infercluster::memory
