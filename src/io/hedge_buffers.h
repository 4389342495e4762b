// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "io/backend.h"

namespace infercluster::io {

// Which half of the budget a hedged transfer's attempt draws on. Without the split, first attempts that hang could hold
// every buffer, and the hedges that would pass them by could never start.
enum class BufferShare : std::uint8_t { first_attempt, hedge };

// Memory of the engine's own, for attempts that may outlive their transfer. Sizes are powers of two from 4 KiB; a
// buffer is aligned to its size, up to 64 KiB, which satisfies every direct-I/O alignment that divides the attempt's
// length. Freed buffers are kept for the next attempt. Thread rule: the engine's thread.
class HedgeBuffers {
 public:
  explicit HedgeBuffers(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}

  // Null when this share of the budget is used up; a share always gives one buffer, of whatever size.
  [[nodiscard]] std::byte* take(std::uint32_t length, BufferShare share);
  void give_back(std::byte* buffer, std::uint32_t length, BufferShare share);
  [[nodiscard]] std::uint64_t bytes_in_use() const { return used_[0] + used_[1]; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  using Buffer = std::unique_ptr<std::byte, Free>;
  static constexpr std::uint32_t kSmallest = 4096;
  static constexpr std::size_t kClasses = 13;  // 4 KiB to 16 MiB
  static_assert((std::uint64_t{kSmallest} << (kClasses - 1)) == kRequestBytesMax);

  static std::size_t class_of(std::uint32_t length);
  void drop_idle();

  std::uint64_t bytes_max_;
  std::array<std::uint64_t, 2> used_{};  // by share
  std::uint64_t idle_ = 0;
  std::array<std::vector<Buffer>, kClasses> free_;
};

}  // namespace infercluster::io
