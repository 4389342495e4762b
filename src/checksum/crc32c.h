// SPDX-License-Identifier: Apache-2.0
// CRC32C (Castagnoli, RFC 3720 appendix B.4): reflected, initial value and final XOR all ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace infercluster::checksum {

// The CRC32C of `bytes`; with `previous`, of what came before followed by `bytes`. crc32c of "123456789" is 0xE3069283.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t previous = 0);

// The CRC32C of A followed by B, from theirs and the length of B in bytes. O(log length).
std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t length_b);

}  // namespace infercluster::checksum
