// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA driver API that we call, declared by ourselves: nothing is linked, and no toolkit is needed to
// build. headers_test.cc holds each declaration against the real cuda.h where one is installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace infercluster::gpu {

// Opaque handles, as in cuda.h: pointers, and an int for the device.
using CuDevice = int;
using CuDevicePtr = unsigned long long;  // NOLINT(google-runtime-int): cuda.h's type
using CuContext = struct CuContextTag*;
using CuStream = struct CuStreamTag*;
using CuEvent = struct CuEventTag*;
using CuArray = struct CuArrayTag*;

// CUresult: those that we tell apart. Any other int may come back.
enum class CuResult : int {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  deinitialized = 4,
  stub_library = 34,
  no_device = 100,
  invalid_device = 101,
  invalid_context = 201,
  ecc_uncorrectable = 214,
  operating_system = 304,
  invalid_handle = 400,
  not_found = 500,
  not_ready = 600,
  illegal_address = 700,
  context_is_destroyed = 709,
  host_memory_already_registered = 712,
  host_memory_not_registered = 713,
  launch_failed = 719,
  not_permitted = 800,
  not_supported = 801,
  system_not_ready = 802,
  system_driver_mismatch = 803,
  compat_not_supported_on_device = 804,
  unknown = 999,
};

// CUdevice_attribute
enum class CuDeviceAttribute : int {
  max_pitch = 11,
  integrated = 18,
  async_engine_count = 40,
  unified_addressing = 41,
  compute_capability_major = 75,
  compute_capability_minor = 76,
  host_register_supported = 99,
  gpu_direct_rdma_supported = 116,
};

// CUpointer_attribute. Written: `context` a CuContext, `memory_type` an unsigned int, `device_ordinal` an int,
// `range_start` a CuDevicePtr and `range_size` a size_t: the allocation or registration that holds the address.
enum class CuPointerAttribute : int {
  context = 1,
  memory_type = 2,
  device_ordinal = 9,
  range_start = 11,
  range_size = 12,
};

// CUmemorytype
enum class CuMemoryType : unsigned { host = 1, device = 2, array = 3, unified = 4 };

inline constexpr unsigned kCuStreamNonBlocking = 1;     // CU_STREAM_NON_BLOCKING
inline constexpr unsigned kCuEventDisableTiming = 2;    // CU_EVENT_DISABLE_TIMING
inline constexpr unsigned kCuHostRegisterPortable = 1;  // CU_MEMHOSTREGISTER_PORTABLE

// CUDA_MEMCPY2D_v2: `height` rows of `width_bytes`, `*_pitch` bytes apart. Pitches are at least the width.
struct CuMemcpy2D {
  std::size_t source_x_bytes;
  std::size_t source_y;
  CuMemoryType source_type;
  const void* source_host;
  CuDevicePtr source_device;
  CuArray source_array;
  std::size_t source_pitch;
  std::size_t target_x_bytes;
  std::size_t target_y;
  CuMemoryType target_type;
  void* target_host;
  CuDevicePtr target_device;
  CuArray target_array;
  std::size_t target_pitch;
  std::size_t width_bytes;
  std::size_t height;
};

// X(symbol as libcuda exports it, parameters): each returns a CUresult. The numbered symbols are those that cuda.h of
// CUDA 12 and 13 maps the plain names to.
// clang-format off
#define IC_CUDA_FUNCTIONS(X)                                                                                           \
  X(cuInit, (unsigned flags))                                                                                          \
  X(cuDriverGetVersion, (int* version)) /* 1000 * major + 10 * minor */                                                \
  X(cuGetErrorName, (CuResult result, const char** text))                                                              \
  X(cuGetErrorString, (CuResult result, const char** text))                                                            \
  X(cuDeviceGetCount, (int* count))                                                                                    \
  X(cuDeviceGet, (CuDevice* device, int ordinal))                                                                      \
  X(cuDeviceGetName, (char* name, int length, CuDevice device))                                                        \
  X(cuDeviceGetPCIBusId, (char* id, int length, CuDevice device)) /* "0000:0b:00.0" */                                 \
  X(cuDeviceGetAttribute, (int* value, CuDeviceAttribute attribute, CuDevice device))                                  \
  X(cuDeviceTotalMem_v2, (std::size_t* bytes, CuDevice device))                                                        \
  X(cuDevicePrimaryCtxRetain, (CuContext* context, CuDevice device))                                                   \
  X(cuDevicePrimaryCtxRelease_v2, (CuDevice device))                                                                   \
  X(cuDevicePrimaryCtxGetState, (CuDevice device, unsigned* flags, int* active))                                       \
  X(cuCtxPushCurrent_v2, (CuContext context))                                                                          \
  X(cuCtxPopCurrent_v2, (CuContext* context))                                                                          \
  X(cuCtxGetCurrent, (CuContext* context))                                                                             \
  X(cuMemGetInfo_v2, (std::size_t* free, std::size_t* total))                                                          \
  X(cuMemAlloc_v2, (CuDevicePtr* address, std::size_t bytes))                                                          \
  X(cuMemFree_v2, (CuDevicePtr address))                                                                               \
  X(cuMemHostRegister_v2, (void* address, std::size_t bytes, unsigned flags))                                          \
  X(cuMemHostUnregister, (void* address))                                                                              \
  X(cuMemcpyHtoDAsync_v2, (CuDevicePtr to, const void* from, std::size_t bytes, CuStream stream))                      \
  X(cuMemcpyDtoHAsync_v2, (void* to, CuDevicePtr from, std::size_t bytes, CuStream stream))                            \
  X(cuMemcpyDtoDAsync_v2, (CuDevicePtr to, CuDevicePtr from, std::size_t bytes, CuStream stream))                      \
  X(cuMemcpy2DAsync_v2, (const CuMemcpy2D* copy, CuStream stream))                                                     \
  X(cuMemsetD8Async, (CuDevicePtr to, unsigned char value, std::size_t bytes, CuStream stream))                        \
  X(cuStreamCreate, (CuStream* stream, unsigned flags))                                                                \
  X(cuStreamDestroy_v2, (CuStream stream))                                                                             \
  X(cuStreamSynchronize, (CuStream stream))                                                                            \
  X(cuStreamQuery, (CuStream stream))                                                                                  \
  X(cuStreamWaitEvent, (CuStream stream, CuEvent event, unsigned flags))                                               \
  X(cuEventCreate, (CuEvent* event, unsigned flags))                                                                   \
  X(cuEventDestroy_v2, (CuEvent event))                                                                                \
  X(cuEventRecord, (CuEvent event, CuStream stream))                                                                   \
  X(cuEventQuery, (CuEvent event))                                                                                     \
  X(cuEventSynchronize, (CuEvent event))                                                                               \
  X(cuPointerGetAttribute, (void* value, CuPointerAttribute attribute, CuDevicePtr address))
// clang-format on

// What was found in the library; each member has the name of its symbol. All are there, or there is no Driver.
struct CudaApi {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a parameter list stands in no others
#define IC_CUDA_MEMBER(symbol, parameters) CuResult(*symbol) parameters = nullptr;
  IC_CUDA_FUNCTIONS(IC_CUDA_MEMBER)
#undef IC_CUDA_MEMBER
};

}  // namespace infercluster::gpu
