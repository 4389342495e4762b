// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

namespace infercluster {

// Fills with random bytes that nobody can foresee: fit for keys and challenges. At most 256 at once.
void fill_random(std::span<std::byte> bytes);

}  // namespace infercluster
