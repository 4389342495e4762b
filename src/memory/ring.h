// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "memory/block.h"

namespace infercluster::memory {

// A few equal buffers in one small block, lent and given back; what is staged passes through them. Thread rule: one
// thread.
class Ring {
 public:
  // In host memory that is populated when this returns, so that its pages are warm. `slot_bytes` is a multiple of
  // kArenaAlignment.
  static Result<Ring> create(std::uint64_t slot_bytes, unsigned slots);
  // In memory of the caller's: pinned, or of a device.
  Ring(Block block, std::uint64_t slot_bytes);

  [[nodiscard]] std::uint64_t slot_bytes() const { return slot_bytes_; }
  [[nodiscard]] std::uint64_t bytes() const { return slot_bytes_ * lent_.size(); }
  [[nodiscard]] unsigned available() const { return static_cast<unsigned>(free_.size()); }
  // A slot's number, or nothing when all are lent.
  std::optional<unsigned> take();
  void give_back(unsigned slot);
  [[nodiscard]] Span span(unsigned slot) const { return block_.span.part(slot * slot_bytes_, slot_bytes_); }

 private:
  Block block_;
  std::uint64_t slot_bytes_ = 0;
  std::vector<unsigned> free_;
  std::vector<bool> lent_;
};

}  // namespace infercluster::memory
