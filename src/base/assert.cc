// SPDX-License-Identifier: Apache-2.0
#include "base/assert.h"

#include <cstdio>
#include <cstdlib>

namespace infercluster {

void assert_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "infercluster: internal error: %s does not hold, at %s:%d\n", expression, file, line);
  std::abort();
}

}  // namespace infercluster
