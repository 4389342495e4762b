// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "memory/span.h"

namespace infercluster::memory {

// Brings staged bytes to where a tensor lives. Copies may be asynchronous: the source may be reused when the fence that
// was taken after them has passed. Thread rule: one thread.
class Copier {
 public:
  using Fence = std::uint64_t;

  virtual ~Copier() = default;
  // `from` is a ring slot or an arena; `to` has the kind and device that this copier is for.
  virtual Status copy(const std::byte* from, const Span& to) = 0;
  // Passes when all copies before it are done.
  virtual Result<Fence> fence() = 0;
  virtual Result<bool> passed(Fence fence) = 0;
  // Waits for all copies. On error none is in flight either.
  virtual Status drain() = 0;
};

// memcpy: every copy is done when copy() returns.
std::unique_ptr<Copier> make_host_copier();

}  // namespace infercluster::memory
