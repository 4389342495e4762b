// SPDX-License-Identifier: Apache-2.0
#include "base/random.h"

#include <sys/random.h>

#include "base/assert.h"

namespace infercluster {

void fill_random(std::span<std::byte> bytes) {
  // For 256 bytes at most it can neither fail nor come short (getrandom(2)).
  IC_ASSERT(bytes.size() <= 256 && getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
}

}  // namespace infercluster
