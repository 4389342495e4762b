// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace infercluster::checksum {

// CRC-32 (RFC 1952, section 8: that of gzip and zlib). crc32 of "123456789" is 0xCBF43926.
std::uint32_t crc32(std::span<const std::byte> bytes);

}  // namespace infercluster::checksum
