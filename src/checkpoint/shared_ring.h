// SPDX-License-Identifier: Apache-2.0
// A few buffers in memory that the ranks of a node share. Numbered contents pass through them in order: one rank fills
// a buffer, the others take from it, and when all have, the next number of that buffer may be filled. Nothing waits in
// here but wait(); a rank that is gone makes the others wait in vain, which they must notice by other means.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

namespace infercluster::checkpoint {

// A view, the same in all processes. Thread-safe.
class SharedRing {
 public:
  // Memory that it takes: page-aligned, zeroed before the first rank looks at it.
  static std::uint64_t bytes(std::uint64_t slots, std::uint64_t slot_bytes);
  SharedRing(std::span<std::byte> memory, std::uint64_t slots, std::uint64_t slot_bytes);

  [[nodiscard]] std::uint64_t slots() const { return slots_; }
  [[nodiscard]] std::byte* buffer(std::uint64_t number) const;

  // Everything before it in its buffer was taken by all.
  [[nodiscard]] bool may_fill(std::uint64_t number) const;
  // What is in the buffer now goes to so many takers, one at least.
  void publish(std::uint64_t number, std::uint32_t takers) const;
  [[nodiscard]] bool is_filled(std::uint64_t number) const;
  // By each taker, once it reads there no more.
  void release(std::uint64_t number) const;

  // How many ranks said that they are through.
  void finish() const;
  [[nodiscard]] std::uint32_t finished() const;

  // Until something has changed since changes() gave `seen`, or the time is over.
  [[nodiscard]] std::uint32_t changes() const;
  void wait(std::uint32_t seen, std::chrono::nanoseconds timeout) const;

 private:
  struct Slot;
  struct Header;
  [[nodiscard]] Header& header() const;
  [[nodiscard]] Slot& slot(std::uint64_t number) const;
  void tell() const;

  std::span<std::byte> memory_;
  std::uint64_t slots_;
  std::uint64_t slot_bytes_;
};

}  // namespace infercluster::checkpoint
