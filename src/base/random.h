// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace infercluster {

// Fills with random bytes that nobody can foresee: fit for keys and challenges. At most 256 at once.
void fill_random(std::span<std::byte> bytes);
// So many such bytes, 2 hexadecimal digits each.
std::string random_hex(std::size_t bytes);

}  // namespace infercluster
