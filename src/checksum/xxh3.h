// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace infercluster::checksum {

// XXH3, 64 bits, seed 0. For hash tables, plan hashes and comparisons; stored checksums are CRC32C.
std::uint64_t xxh3(std::span<const std::byte> bytes);

}  // namespace infercluster::checksum
