// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "os/limits.h"

namespace infercluster::io {

// How many page-cache copies run at once. Twice the processors keeps them busy through page faults and wake-ups
// (bench/load/limit on two processors: four copying threads 10.9 GB/s, two 9.6); memory is the limit well before 32.
inline unsigned resident_copies_max() {
  return std::clamp(2 * os::usable_processors(), 2u, 32u);
}

}  // namespace infercluster::io
