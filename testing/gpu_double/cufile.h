// SPDX-License-Identifier: Apache-2.0
// cuFile, implemented in libcuda.so.1 of the double, where device memory is. libcufile.so.0 only passes on to these.
#pragma once

#include <sys/types.h>

#include <cstddef>

#include "gpu/cufile_api.h"
#include "testing/gpu_double/exported.h"

#define IC_GPU_DOUBLE_DECLARE(symbol, returned, parameters) IC_EXPORT returned ic_gpu_double_##symbol parameters;
namespace infercluster::gpu {
IC_CUFILE_FUNCTIONS(IC_GPU_DOUBLE_DECLARE)
IC_CUFILE_OPTIONAL_FUNCTIONS(IC_GPU_DOUBLE_DECLARE)
}  // namespace infercluster::gpu
#undef IC_GPU_DOUBLE_DECLARE
