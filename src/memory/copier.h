// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "memory/span.h"

namespace infercluster::memory {

// A point in work on memory, on a stream. See Copier::wait_for and Copier::mark. Thread-safe once it is there.
class Mark {
 public:
  virtual ~Mark() = default;
  // Does not wait.
  [[nodiscard]] virtual Result<bool> passed() const = 0;
  // On error the work may be under way still: Copier::drain() ends it.
  virtual Status wait() const = 0;
};

// Equal rows at equal distances on both sides.
struct RowLayout {
  std::uint64_t rows = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t from_pitch = 0;  // bytes between the starts of two rows; at least row_bytes
  std::uint64_t to_pitch = 0;
};

struct CopyStatistics {
  std::uint64_t copies = 0;  // as they were given to the hardware: adjacent ones may have been merged
  std::uint64_t bytes = 0;
};

// Brings staged bytes to where a tensor lives. Copies may be asynchronous: the source may be reused when the fence that
// was taken after them has passed. Thread rule: one thread.
class Copier {
 public:
  using Fence = std::uint64_t;

  virtual ~Copier() = default;
  // Equal bytes. `from` is a ring slot or an arena; `to` has the kind and device that this copier is for.
  virtual Status copy(const Span& from, const Span& to) = 0;
  // Both spans reach from the first row's first byte to the last row's last.
  virtual Status copy_rows(const Span& from, const Span& to, const RowLayout& layout) = 0;
  // Copies from here on begin only when the work before the mark is done.
  virtual Status wait_for(const Mark& mark) = 0;
  // Passes when all copies before it are done.
  virtual Result<Fence> fence() = 0;
  virtual Result<bool> passed(Fence fence) = 0;
  // The same for others, who may outlive the copier; null: all copies before it are done.
  virtual Result<std::shared_ptr<const Mark>> mark() = 0;
  // Waits for all copies. On error none is in flight either.
  virtual Status drain() = 0;
  // Complete after drain().
  [[nodiscard]] virtual CopyStatistics statistics() const = 0;
};

// memcpy: every copy is done when copy() returns.
std::unique_ptr<Copier> make_host_copier();

}  // namespace infercluster::memory
