// SPDX-License-Identifier: Apache-2.0
#include "base/random.h"

#include <sys/random.h>

#include <vector>

#include "base/assert.h"

namespace infercluster {

void fill_random(std::span<std::byte> bytes) {
  // For 256 bytes at most it can neither fail nor come short (getrandom(2)).
  IC_ASSERT(bytes.size() <= 256 && getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
}

std::string random_hex(std::size_t bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::vector<std::byte> random(bytes);
  fill_random(random);
  std::string text;
  for (const std::byte byte : random) {
    const auto value = std::to_integer<unsigned>(byte);
    text += {kDigits[value >> 4], kDigits[value & 15]};
  }
  return text;
}

}  // namespace infercluster
