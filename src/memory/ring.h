// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "memory/arena.h"

namespace infercluster::memory {

// A few equal buffers in one small arena, lent and given back; what is staged passes through them. Populated when it is
// made, so that its pages are warm. Thread rule: one thread.
class Ring {
 public:
  // `slot_bytes` is a multiple of kArenaAlignment.
  static Result<Ring> create(std::uint64_t slot_bytes, unsigned slots);

  [[nodiscard]] std::uint64_t slot_bytes() const { return slot_bytes_; }
  [[nodiscard]] std::uint64_t bytes() const { return arena_->bytes(); }
  [[nodiscard]] unsigned available() const { return static_cast<unsigned>(free_.size()); }
  // A slot's number, or nothing when all are lent.
  std::optional<unsigned> take();
  void give_back(unsigned slot);
  [[nodiscard]] std::byte* memory(unsigned slot) const { return arena_->data() + slot * slot_bytes_; }

 private:
  Ring() = default;
  std::shared_ptr<Arena> arena_;
  std::uint64_t slot_bytes_ = 0;
  std::vector<unsigned> free_;
  std::vector<bool> lent_;
};

}  // namespace infercluster::memory
