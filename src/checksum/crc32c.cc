// SPDX-License-Identifier: Apache-2.0
#include "checksum/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <array>

namespace infercluster::checksum {
namespace {

// Polynomials over GF(2) modulo the Castagnoli polynomial, in reflected order: bit 31 is x^0, bit 0 is x^31.
constexpr std::uint32_t kCastagnoli = 0x82F63B78;
constexpr std::uint32_t kOne = 0x80000000;          // x^0
constexpr std::uint32_t kEighthPower = 0x00800000;  // x^8: one byte

constexpr std::uint32_t times_x(std::uint32_t value) {
  return (value >> 1) ^ ((value & 1) != 0 ? kCastagnoli : 0);
}

constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = times_x(b);
  }
  return product;
}

// kBytePowers[k] is x^(8 * 2^k): what appending 2^k zero bytes multiplies by.
constexpr std::array<std::uint32_t, 64> kBytePowers = [] {
  std::array<std::uint32_t, 64> powers{};
  std::uint32_t power = kEighthPower;
  for (std::uint32_t& entry : powers) {
    entry = power;
    power = multiply(power, power);
  }
  return powers;
}();

// ISA-L takes the length as an int.
constexpr std::size_t kPieceBytes = std::size_t{1} << 30;

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t previous) {
  // crc32_iscsi leaves the initial and the final inversion to its caller.
  std::uint32_t state = ~previous;
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), kPieceBytes);
    auto* const data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));  // only read
    state = crc32_iscsi(data, static_cast<int>(count), state);
    bytes = bytes.subspan(count);
  }
  return ~state;
}

std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t length_b) {
  // The inversions of both sides cancel out: only A's remainder moves, by length_b zero bytes.
  std::uint32_t shifted = crc_a;
  for (std::size_t k = 0; length_b != 0; ++k, length_b >>= 1) {
    if ((length_b & 1) != 0) shifted = multiply(kBytePowers[k], shifted);
  }
  return shifted ^ crc_b;
}

}  // namespace infercluster::checksum
