// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace infercluster::memory {

enum class Kind : std::uint8_t { host, cuda };

// Memory that somebody owns: a host arena, a caller's tensor, or GPU memory that the host cannot touch.
struct Span {
  Kind kind = Kind::host;
  int device = -1;  // ordinal of a cuda span
  std::uintptr_t address = 0;
  std::uint64_t bytes = 0;

  [[nodiscard]] std::byte* host() const { return reinterpret_cast<std::byte*>(address); }  // NOLINT: kind == host only
  // `length` bytes of it from `offset` on; the caller has checked that they lie within.
  [[nodiscard]] Span part(std::uint64_t offset, std::uint64_t length) const {
    return {kind, device, address + offset, length};
  }
};

inline Span host_span(const std::byte* data, std::uint64_t bytes) {
  return {Kind::host, -1, reinterpret_cast<std::uintptr_t>(data), bytes};
}

}  // namespace infercluster::memory
