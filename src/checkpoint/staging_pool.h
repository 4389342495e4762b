// SPDX-License-Identifier: Apache-2.0
// Memory that states are copied to, kept for the next one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/result.h"
#include "memory/arena.h"

namespace infercluster::checkpoint {

// Two blocks by turns. Unlike SnapshotArenas it never waits: whoever holds on to copies gets more memory, and what is
// given back beyond two blocks goes. Thread-safe. Blocks may outlive the pool.
class StagingPool {
 public:
  StagingPool() : kept_(std::make_shared<Kept>()) {}

  struct Block {
    std::shared_ptr<void> owner;  // the block is the pool's again when the last copy is dropped
    std::span<std::byte> memory;  // populated; starts at a multiple of memory::kArenaAlignment
  };
  // At least so many bytes. Errors: out_of_memory.
  Result<Block> acquire(std::uint64_t bytes);
  // Lets go of what nobody holds.
  void trim();

 private:
  struct Kept {
    std::mutex mutex;
    std::vector<std::shared_ptr<memory::Arena>> free;  // longest free first; guarded by mutex
    std::size_t blocks = 0;                            // free or held; guarded by mutex
  };
  std::shared_ptr<Kept> kept_;
};

}  // namespace infercluster::checkpoint
