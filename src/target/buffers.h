// SPDX-License-Identifier: Apache-2.0
// The memory that one shard reads files into, in buffers of one size: the bound on what hosts can make it hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "memory/arena.h"

namespace infercluster::target {

// Thread rule: one thread; leases may be dropped by it alone, and before the pool goes.
class Buffers {
 public:
  static Result<Buffers> allocate(std::size_t count, std::uint64_t bytes_each);

  // Null: all are in use.
  std::byte* take();
  void give_back(std::byte* buffer) { free_.push_back(buffer); }
  [[nodiscard]] std::size_t available() const { return free_.size(); }

 private:
  std::shared_ptr<memory::Arena> arena_;
  std::vector<std::byte*> free_;
};

}  // namespace infercluster::target
