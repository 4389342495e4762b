// SPDX-License-Identifier: Apache-2.0
#include "checksum/crc32.h"

#include <isa-l/crc.h>

namespace infercluster::checksum {

std::uint32_t crc32(std::span<const std::byte> bytes) {
  return crc32_gzip_refl(0, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

}  // namespace infercluster::checksum
