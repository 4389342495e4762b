// SPDX-License-Identifier: Apache-2.0
#include "checksum/xxh3.h"

#include <xxhash.h>

namespace infercluster::checksum {

std::uint64_t xxh3(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace infercluster::checksum
