// SPDX-License-Identifier: Apache-2.0
// Little-endian fields at fixed offsets of structures that peers exchange. The offsets are constants of this module and
// the structures have fixed sizes: a field outside of its structure is a programmer's error.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/assert.h"

namespace infercluster::nvme {

template <std::unsigned_integral T>
constexpr T load(std::span<const std::byte> bytes, std::size_t offset) {
  IC_ASSERT(offset <= bytes.size() && sizeof(T) <= bytes.size() - offset);
  std::uint64_t value = 0;
  for (std::size_t i = sizeof(T); i-- > 0;) value = value << 8 | std::to_integer<std::uint64_t>(bytes[offset + i]);
  return static_cast<T>(value);
}

template <std::unsigned_integral T>
constexpr void store(std::span<std::byte> bytes, std::size_t offset, T value) {
  IC_ASSERT(offset <= bytes.size() && sizeof(T) <= bytes.size() - offset);
  std::uint64_t rest = value;
  for (std::size_t i = 0; i < sizeof(T); ++i, rest >>= 8) bytes[offset + i] = static_cast<std::byte>(rest & 0xFF);
}

struct Field {
  std::size_t offset = 0;
  std::size_t length = 0;
};

// A text field up to its first NUL, without the spaces that pad it at the end. Its bytes are whatever the peer sent.
inline std::string load_text(std::span<const std::byte> bytes, Field field) {
  IC_ASSERT(field.offset <= bytes.size() && field.length <= bytes.size() - field.offset);
  std::string text;
  for (const std::byte byte : bytes.subspan(field.offset, field.length)) {
    if (byte == std::byte{0}) break;
    text.push_back(static_cast<char>(byte));
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

// Text that fits (a programmer's error otherwise), padded with `pad`: ' ' for what the specification calls ASCII
// strings, NUL for NQNs.
inline void store_text(std::span<std::byte> bytes, Field field, std::string_view text, char pad) {
  IC_ASSERT(field.offset <= bytes.size() && field.length <= bytes.size() - field.offset && text.size() <= field.length);
  const std::span<std::byte> place = bytes.subspan(field.offset, field.length);
  std::fill(place.begin(), place.end(), static_cast<std::byte>(pad));
  std::transform(text.begin(), text.end(), place.begin(), [](char c) { return static_cast<std::byte>(c); });
}

}  // namespace infercluster::nvme
