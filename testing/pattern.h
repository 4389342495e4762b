// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>

#include "base/assert.h"

namespace infercluster::testing {

// The byte that a pattern file holds at `offset`: never the same for two neighbouring blocks of any power of two.
inline std::byte pattern_byte(std::uint64_t offset) {
  const std::uint64_t word = (offset / 8 + 1) * 0x9E3779B97F4A7C15ULL;
  return static_cast<std::byte>(word >> (8 * (offset % 8)));
}

inline std::string pattern_text(std::size_t length) {
  std::string text(length, '\0');
  for (std::size_t i = 0; i < length; ++i) text[i] = static_cast<char>(pattern_byte(i));
  return text;
}

// The first place where `bytes`, read at `offset`, differ from the pattern; bytes.size() when none does.
inline std::size_t first_difference(std::span<const std::byte> bytes, std::uint64_t offset) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != pattern_byte(offset + i)) return i;
  }
  return bytes.size();
}

// Page-aligned memory, filled with 0xEE: what nobody wrote shows.
class AlignedMemory {
 public:
  explicit AlignedMemory(std::size_t length) : length_(length) {
    bytes_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, (length + 4095) / 4096 * 4096)));
    IC_ASSERT(bytes_ != nullptr);
    clear();
  }
  void clear() {
    for (std::size_t i = 0; i < length_; ++i) bytes_.get()[i] = std::byte{0xEE};
  }
  [[nodiscard]] std::byte* data() { return bytes_.get(); }
  [[nodiscard]] std::span<std::byte> span(std::size_t offset, std::size_t length) {
    IC_ASSERT(offset <= length_ && length <= length_ - offset);
    return {bytes_.get() + offset, length};
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> bytes_;
  std::size_t length_;
};

}  // namespace infercluster::testing
