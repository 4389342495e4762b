// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "gpu/device.h"
#include "load/options.h"
#include "memory/block.h"
#include "memory/copier.h"
#include "memory/ring.h"

namespace infercluster::load {

// Where a load's tensors go: the host, or one device. Thread-safe; outlives what it hands out.
class Target {
 public:
  virtual ~Target() = default;
  [[nodiscard]] virtual memory::Kind kind() const = 0;
  [[nodiscard]] virtual int device() const = 0;  // ordinal; -1: the host

  [[nodiscard]] virtual std::shared_ptr<gpu::Device> gpu() const { return nullptr; }

  // Memory for tensors: the caller's allocator's where one was given.
  virtual Result<memory::Block> allocate(std::uint64_t bytes) = 0;
  [[nodiscard]] virtual std::uint64_t free_bytes() const = 0;
  // Refuses (out_of_memory) what cannot fit, rather than failing half-way.
  [[nodiscard]] virtual Status check_free(std::uint64_t bytes) const = 0;
  // Host memory that copies to the target are fastest from, and what does them.
  virtual Result<memory::Ring> make_ring(std::uint64_t slot_bytes, unsigned slots) = 0;
  virtual Result<std::unique_ptr<memory::Copier>> make_copier() = 0;
  // A point behind all work on the target's memory that the caller has queued until now; null: such work is done when
  // the caller lets go of the memory.
  virtual Result<std::shared_ptr<const memory::Mark>> mark() = 0;
  // Waits for the bytes. For checks.
  virtual Status read(const memory::Span& from, std::byte* to) = 0;
};

std::shared_ptr<Target> make_host_target();
// By the options' device. Errors: unsupported (no driver, with the reason), invalid_argument (no such device).
Result<std::shared_ptr<Target>> open_target(const Options& options);

}  // namespace infercluster::load
