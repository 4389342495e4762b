// SPDX-License-Identifier: Apache-2.0
// Sizes in bytes. KiB, MiB and GiB are powers of two, everywhere.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "base/result.h"

namespace infercluster {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;

// `alignment` is a power of two. align_up asserts that the result does not wrap.
constexpr std::uint64_t align_down(std::uint64_t value, std::uint64_t alignment) {
  return value & ~(alignment - 1);
}
constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  const std::uint64_t padded = value + (alignment - 1);
  IC_ASSERT(padded >= value);
  return align_down(padded, alignment);
}
constexpr bool is_power_of_two(std::uint64_t value) {
  return value != 0 && (value & (value - 1)) == 0;
}

// "1.50 GiB", "12 B".
std::string format_bytes(std::uint64_t bytes);
// Bytes per second as "1.50 GiB/s".
std::string format_rate(double bytes_per_second);
// "2GiB", "1.5 MiB", "64K" (KiB), "1000000" -> bytes. Also KB, MB, GB (powers of ten). Refuses signs and overflow.
Result<std::uint64_t> parse_bytes(std::string_view text);

}  // namespace infercluster
