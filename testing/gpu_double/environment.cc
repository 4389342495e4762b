// SPDX-License-Identifier: Apache-2.0
// Linked into the tests that ic_gpu_test() makes: they find the doubles however they are started.
#include <cstdlib>

namespace {

// Before main(), while there is one thread. What the caller has set stays.
const bool g_set = [] {
  ::setenv("INFERCLUSTER_LIBCUDA", IC_GPU_DOUBLE_LIBCUDA, 0);
  ::setenv("INFERCLUSTER_LIBCUFILE", IC_GPU_DOUBLE_LIBCUFILE, 0);
  return true;
}();

}  // namespace
