// SPDX-License-Identifier: Apache-2.0
// Host memory for tensors: huge pages where they can be had, brought in ahead of the reads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "memory/span.h"
#include "os/memory_map.h"

namespace infercluster::memory {

// Arenas start at a multiple of this, so that an offset in an arena is congruent with its address for every direct-I/O
// alignment up to it.
inline constexpr std::uint64_t kArenaAlignment = 4096;

// What is populated at a time: small enough that reads can follow closely, two huge pages so that the call pays.
inline constexpr std::uint64_t kPopulateStep = 4u << 20;

// One block of host memory. Owners share it: tensors keep it alive. Thread-safe: any thread may populate and ask.
class Arena {
 public:
  // Explicit huge pages when enough lie reserved, else transparent ones. Excluded from forks until inherit_on_fork().
  static Result<std::shared_ptr<Arena>> allocate(std::uint64_t bytes);

  explicit Arena(os::Mapping mapping);

  [[nodiscard]] std::byte* data() const { return mapping_.data().data(); }
  [[nodiscard]] std::uint64_t bytes() const { return mapping_.data().size(); }
  [[nodiscard]] Span span() const { return {Kind::host, -1, reinterpret_cast<std::uintptr_t>(data()), bytes()}; }

  // Steps of kPopulateStep from the start; the last may be shorter.
  [[nodiscard]] std::uint64_t steps() const { return steps_; }
  Status populate_step(std::uint64_t step);
  // Are all steps that [offset, offset + length) touches populated?
  [[nodiscard]] bool is_populated(std::uint64_t offset, std::uint64_t length) const;

  // Once no I/O is in flight: a child process sees the tensors as it sees other memory.
  Status inherit_on_fork();
  Status exclude_from_fork();

 private:
  os::Mapping mapping_;
  std::uint64_t steps_ = 0;
  std::unique_ptr<std::atomic<bool>[]> populated_;
};

}  // namespace infercluster::memory
