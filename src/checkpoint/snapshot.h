// SPDX-License-Identifier: Apache-2.0
// Where state is copied to while its owner waits: memory that is kept from save to save.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/strided_copy.h"
#include "gpu/device.h"
#include "gpu/memory.h"
#include "memory/arena.h"

namespace infercluster::checkpoint {

inline constexpr unsigned kGenerations = 2;

// Images of segments that wait to be written. Two at most, so that a save may be taken while the one before it is being
// written; the third waits. Thread-safe.
class SnapshotArenas {
 public:
  // `bytes_max`: of both together; 0: half of the memory that is free at the first acquire().
  explicit SnapshotArenas(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}
  SnapshotArenas(const SnapshotArenas&) = delete;
  SnapshotArenas& operator=(const SnapshotArenas&) = delete;

  // A generation until the lease is dropped. Must not outlive the arenas.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease();
    // At least the bytes asked for, populated; starts at a multiple of memory::kArenaAlignment.
    [[nodiscard]] std::span<std::byte> memory() const;

   private:
    friend class SnapshotArenas;
    SnapshotArenas* owner_ = nullptr;
    unsigned generation_ = 0;
  };
  // Waits while both are leased. At most window_bytes(). `pin_for`: also pinned, for copies of all devices, and kept
  // so; null: as it is. Errors: out_of_memory, and those of gpu::Pinned::make.
  Result<Lease> acquire(std::uint64_t bytes, const std::shared_ptr<gpu::Device>& pin_for = nullptr);
  // The most that one generation may hold: a larger image is copied in windows of it. A multiple of 64 KiB.
  [[nodiscard]] std::uint64_t window_bytes();

 private:
  struct Generation {
    std::shared_ptr<memory::Arena> arena;
    std::unique_ptr<gpu::Pinned> pinned;  // the arena
    bool leased = false;
  };
  Status fit(unsigned generation, std::uint64_t bytes, const std::shared_ptr<gpu::Device>& pin_for);
  void give_back(unsigned generation);

  std::mutex mutex_;
  std::uint64_t bytes_max_;  // 0: not yet known; guarded by mutex_
  std::condition_variable free_;
  std::array<Generation, kGenerations> generations_;  // `leased` is guarded by mutex_; the rest belongs to its lease
};

// Brings all of it into being, by several threads.
Status populate(memory::Arena& arena);

// Runs `body` with 0 to count - 1, on as many threads as there are processors for it.
void in_parallel(std::uint64_t count, const std::function<void(std::uint64_t)>& body);

// By several threads when that pays; returns when all is copied.
void copy_all(std::vector<StridedCopy> items);

}  // namespace infercluster::checkpoint
