// SPDX-License-Identifier: Apache-2.0
// Holds our declarations of CUDA and cuFile against the real headers, at compile time. Skips where they are not found
// (src/gpu/CMakeLists.txt says where it looks).
#include <gtest/gtest.h>

#if !__has_include(<cuda.h>) || !__has_include(<cufile.h>)

TEST(GpuHeaders, AgreeWithOurDeclarations) {
  GTEST_SKIP()
      << "cuda.h and cufile.h are not installed: set INFERCLUSTER_CUDA_INCLUDE to their folder, or install the "
         "packages nvidia-cuda-runtime and nvidia-cufile into .venv";
}

#else

// Ours first: the real headers turn plain names into numbered ones by macros.
// clang-format off
#include "gpu/cuda_api.h"
#include "gpu/cufile_api.h"

#include <cuda.h>
#include <cufile.h>
// clang-format on

#include <cstddef>
#include <string_view>
#include <type_traits>

namespace infercluster::gpu {
namespace {

// Ours and theirs are passed alike: both integers (or enums), pointers or structures, of one size and alignment.
template <typename Ours, typename Theirs>
constexpr bool passed_alike() {
  if constexpr (std::is_void_v<Ours> || std::is_void_v<Theirs>) {
    return std::is_void_v<Ours> && std::is_void_v<Theirs>;
  } else {
    constexpr bool our_integer = std::is_integral_v<Ours> || std::is_enum_v<Ours>;
    constexpr bool their_integer = std::is_integral_v<Theirs> || std::is_enum_v<Theirs>;
    return our_integer == their_integer && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
           std::is_class_v<Ours> == std::is_class_v<Theirs> && sizeof(Ours) == sizeof(Theirs) &&
           alignof(Ours) == alignof(Theirs);
  }
}

template <typename T>
concept Complete = !std::is_void_v<T> && requires {
  sizeof(T);
};

// A pointer also points to things that are alike, and that are const in both or in neither. Handles and void* end here.
template <typename Ours, typename Theirs>
constexpr bool parameter_alike() {
  if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using OurTarget = std::remove_pointer_t<Ours>;
    using TheirTarget = std::remove_pointer_t<Theirs>;
    if constexpr (std::is_const_v<OurTarget> != std::is_const_v<TheirTarget>) {
      return false;
    } else if constexpr (Complete<OurTarget> != Complete<TheirTarget>) {
      return false;
    } else if constexpr (Complete<OurTarget>) {
      return passed_alike<std::remove_const_t<OurTarget>, std::remove_const_t<TheirTarget> >();
    } else {
      return true;
    }
  } else {
    return passed_alike<Ours, Theirs>();
  }
}

template <typename Ours, typename Theirs>
struct Alike : std::false_type {};

template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
struct Alike<OurResult (*)(Ours...), TheirResult (*)(Theirs...)> {
  static constexpr bool evaluate() {
    if constexpr (sizeof...(Ours) != sizeof...(Theirs)) {
      return false;
    } else {
      return passed_alike<OurResult, TheirResult>() && (parameter_alike<Ours, Theirs>() && ...);
    }
  }
  static constexpr bool value = evaluate();
};

// `exported` is the symbol that we look up, `plain` the name that programs write: the header must map the one to the
// other, or programs call another version than we do.
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define HOLD_CUDA(plain, exported)                                                                               \
  static_assert(std::string_view(TEXT(plain)) == #exported, "the header calls another version than " #exported); \
  static_assert(Alike<decltype(CudaApi::exported), decltype(&::plain)>::value, #exported)
#define HOLD_CUFILE(plain, exported)                                                                             \
  static_assert(std::string_view(TEXT(plain)) == #exported, "the header calls another version than " #exported); \
  static_assert(Alike<decltype(CuFileApi::exported), decltype(&::plain)>::value, #exported)

HOLD_CUDA(cuInit, cuInit);
HOLD_CUDA(cuDriverGetVersion, cuDriverGetVersion);
HOLD_CUDA(cuGetErrorName, cuGetErrorName);
HOLD_CUDA(cuGetErrorString, cuGetErrorString);
HOLD_CUDA(cuDeviceGetCount, cuDeviceGetCount);
HOLD_CUDA(cuDeviceGet, cuDeviceGet);
HOLD_CUDA(cuDeviceGetName, cuDeviceGetName);
HOLD_CUDA(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId);
HOLD_CUDA(cuDeviceGetAttribute, cuDeviceGetAttribute);
HOLD_CUDA(cuDeviceTotalMem, cuDeviceTotalMem_v2);
HOLD_CUDA(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain);
HOLD_CUDA(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2);
HOLD_CUDA(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState);
HOLD_CUDA(cuCtxPushCurrent, cuCtxPushCurrent_v2);
HOLD_CUDA(cuCtxPopCurrent, cuCtxPopCurrent_v2);
HOLD_CUDA(cuCtxGetCurrent, cuCtxGetCurrent);
HOLD_CUDA(cuMemGetInfo, cuMemGetInfo_v2);
HOLD_CUDA(cuMemAlloc, cuMemAlloc_v2);
HOLD_CUDA(cuMemFree, cuMemFree_v2);
HOLD_CUDA(cuMemHostRegister, cuMemHostRegister_v2);
HOLD_CUDA(cuMemHostUnregister, cuMemHostUnregister);
HOLD_CUDA(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2);
HOLD_CUDA(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2);
HOLD_CUDA(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2);
HOLD_CUDA(cuMemcpy2DAsync, cuMemcpy2DAsync_v2);
HOLD_CUDA(cuMemsetD8Async, cuMemsetD8Async);
HOLD_CUDA(cuStreamCreate, cuStreamCreate);
HOLD_CUDA(cuStreamDestroy, cuStreamDestroy_v2);
HOLD_CUDA(cuStreamSynchronize, cuStreamSynchronize);
HOLD_CUDA(cuStreamQuery, cuStreamQuery);
HOLD_CUDA(cuStreamWaitEvent, cuStreamWaitEvent);
HOLD_CUDA(cuEventCreate, cuEventCreate);
HOLD_CUDA(cuEventDestroy, cuEventDestroy_v2);
HOLD_CUDA(cuEventRecord, cuEventRecord);
HOLD_CUDA(cuEventQuery, cuEventQuery);
HOLD_CUDA(cuEventSynchronize, cuEventSynchronize);
HOLD_CUDA(cuPointerGetAttribute, cuPointerGetAttribute);

HOLD_CUFILE(cuFileDriverOpen, cuFileDriverOpen);
HOLD_CUFILE(cuFileDriverClose, cuFileDriverClose_v2);
HOLD_CUFILE(cuFileDriverGetProperties, cuFileDriverGetProperties);
HOLD_CUFILE(cuFileHandleRegister, cuFileHandleRegister);
HOLD_CUFILE(cuFileHandleDeregister, cuFileHandleDeregister);
HOLD_CUFILE(cuFileBufRegister, cuFileBufRegister);
HOLD_CUFILE(cuFileBufDeregister, cuFileBufDeregister);
HOLD_CUFILE(cuFileRead, cuFileRead);
HOLD_CUFILE(cuFileGetVersion, cuFileGetVersion);
#if CUDA_VERSION >= 12090
HOLD_CUFILE(cuFileGetParameterBool, cuFileGetParameterBool);
static_assert(static_cast<int>(CuFileBool::allow_compat_mode) == CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE);
static_assert(static_cast<int>(CuFileBool::force_compat_mode) == CUFILE_PARAM_FORCE_COMPAT_MODE);
static_assert(static_cast<int>(CuFileBool::use_pci_p2pdma) == CUFILE_PARAM_USE_PCIP2PDMA);
#endif
#if CUDA_VERSION >= 13050
HOLD_CUFILE(cuFileDriverGetP2PFlags, cuFileDriverGetP2PFlags);
static_assert(kCuFileFeatureP2p == CU_FILE_P2P_SUPPORTED);
static_assert(kCuFileP2pPciDma == CUFILE_P2PDMA && kCuFileP2pNvidiaFs == CUFILE_NVFS);
static_assert(kCuFileP2pDmaBuf == CUFILE_DMABUF && kCuFileP2pChipToChip == CUFILE_C2C);
#endif

#define HOLD_VALUE(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs), #theirs)
HOLD_VALUE(CuResult::success, CUDA_SUCCESS);
HOLD_VALUE(CuResult::invalid_value, CUDA_ERROR_INVALID_VALUE);
HOLD_VALUE(CuResult::out_of_memory, CUDA_ERROR_OUT_OF_MEMORY);
HOLD_VALUE(CuResult::not_initialized, CUDA_ERROR_NOT_INITIALIZED);
HOLD_VALUE(CuResult::deinitialized, CUDA_ERROR_DEINITIALIZED);
HOLD_VALUE(CuResult::stub_library, CUDA_ERROR_STUB_LIBRARY);
HOLD_VALUE(CuResult::no_device, CUDA_ERROR_NO_DEVICE);
HOLD_VALUE(CuResult::invalid_device, CUDA_ERROR_INVALID_DEVICE);
HOLD_VALUE(CuResult::invalid_context, CUDA_ERROR_INVALID_CONTEXT);
HOLD_VALUE(CuResult::ecc_uncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
HOLD_VALUE(CuResult::operating_system, CUDA_ERROR_OPERATING_SYSTEM);
HOLD_VALUE(CuResult::invalid_handle, CUDA_ERROR_INVALID_HANDLE);
HOLD_VALUE(CuResult::not_found, CUDA_ERROR_NOT_FOUND);
HOLD_VALUE(CuResult::not_ready, CUDA_ERROR_NOT_READY);
HOLD_VALUE(CuResult::illegal_address, CUDA_ERROR_ILLEGAL_ADDRESS);
HOLD_VALUE(CuResult::context_is_destroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
HOLD_VALUE(CuResult::host_memory_already_registered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
HOLD_VALUE(CuResult::host_memory_not_registered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
HOLD_VALUE(CuResult::launch_failed, CUDA_ERROR_LAUNCH_FAILED);
HOLD_VALUE(CuResult::not_permitted, CUDA_ERROR_NOT_PERMITTED);
HOLD_VALUE(CuResult::not_supported, CUDA_ERROR_NOT_SUPPORTED);
HOLD_VALUE(CuResult::system_not_ready, CUDA_ERROR_SYSTEM_NOT_READY);
HOLD_VALUE(CuResult::system_driver_mismatch, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
HOLD_VALUE(CuResult::compat_not_supported_on_device, CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE);
HOLD_VALUE(CuResult::unknown, CUDA_ERROR_UNKNOWN);
HOLD_VALUE(CuDeviceAttribute::max_pitch, CU_DEVICE_ATTRIBUTE_MAX_PITCH);
HOLD_VALUE(CuDeviceAttribute::integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED);
HOLD_VALUE(CuDeviceAttribute::async_engine_count, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
HOLD_VALUE(CuDeviceAttribute::unified_addressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
HOLD_VALUE(CuDeviceAttribute::compute_capability_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
HOLD_VALUE(CuDeviceAttribute::compute_capability_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
HOLD_VALUE(CuDeviceAttribute::host_register_supported, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
HOLD_VALUE(CuDeviceAttribute::gpu_direct_rdma_supported, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
HOLD_VALUE(CuPointerAttribute::context, CU_POINTER_ATTRIBUTE_CONTEXT);
HOLD_VALUE(CuPointerAttribute::memory_type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
HOLD_VALUE(CuPointerAttribute::device_ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
HOLD_VALUE(CuPointerAttribute::range_start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
HOLD_VALUE(CuPointerAttribute::range_size, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
HOLD_VALUE(CuMemoryType::host, CU_MEMORYTYPE_HOST);
HOLD_VALUE(CuMemoryType::device, CU_MEMORYTYPE_DEVICE);
HOLD_VALUE(CuMemoryType::array, CU_MEMORYTYPE_ARRAY);
HOLD_VALUE(CuMemoryType::unified, CU_MEMORYTYPE_UNIFIED);
HOLD_VALUE(kCuStreamNonBlocking, CU_STREAM_NON_BLOCKING);
HOLD_VALUE(kCuEventDisableTiming, CU_EVENT_DISABLE_TIMING);
HOLD_VALUE(kCuHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE);
HOLD_VALUE(CuFileCode::success, CU_FILE_SUCCESS);
HOLD_VALUE(CuFileCode::driver_not_initialized, CU_FILE_DRIVER_NOT_INITIALIZED);
HOLD_VALUE(CuFileCode::driver_version_mismatch, CU_FILE_DRIVER_VERSION_MISMATCH);
HOLD_VALUE(CuFileCode::driver_closing, CU_FILE_DRIVER_CLOSING);
HOLD_VALUE(CuFileCode::platform_not_supported, CU_FILE_PLATFORM_NOT_SUPPORTED);
HOLD_VALUE(CuFileCode::io_not_supported, CU_FILE_IO_NOT_SUPPORTED);
HOLD_VALUE(CuFileCode::device_not_supported, CU_FILE_DEVICE_NOT_SUPPORTED);
HOLD_VALUE(CuFileCode::nvfs_driver_error, CU_FILE_NVFS_DRIVER_ERROR);
HOLD_VALUE(CuFileCode::cuda_driver_error, CU_FILE_CUDA_DRIVER_ERROR);
HOLD_VALUE(CuFileCode::cuda_pointer_invalid, CU_FILE_CUDA_POINTER_INVALID);
HOLD_VALUE(CuFileCode::cuda_memory_type_invalid, CU_FILE_CUDA_MEMORY_TYPE_INVALID);
HOLD_VALUE(CuFileCode::cuda_pointer_range_error, CU_FILE_CUDA_POINTER_RANGE_ERROR);
HOLD_VALUE(CuFileCode::cuda_context_mismatch, CU_FILE_CUDA_CONTEXT_MISMATCH);
HOLD_VALUE(CuFileCode::invalid_mapping_size, CU_FILE_INVALID_MAPPING_SIZE);
HOLD_VALUE(CuFileCode::invalid_mapping_range, CU_FILE_INVALID_MAPPING_RANGE);
HOLD_VALUE(CuFileCode::invalid_file_type, CU_FILE_INVALID_FILE_TYPE);
HOLD_VALUE(CuFileCode::invalid_file_open_flag, CU_FILE_INVALID_FILE_OPEN_FLAG);
HOLD_VALUE(CuFileCode::direct_io_not_set, CU_FILE_DIO_NOT_SET);
HOLD_VALUE(CuFileCode::invalid_value, CU_FILE_INVALID_VALUE);
HOLD_VALUE(CuFileCode::memory_already_registered, CU_FILE_MEMORY_ALREADY_REGISTERED);
HOLD_VALUE(CuFileCode::memory_not_registered, CU_FILE_MEMORY_NOT_REGISTERED);
HOLD_VALUE(CuFileCode::permission_denied, CU_FILE_PERMISSION_DENIED);
HOLD_VALUE(CuFileCode::driver_already_open, CU_FILE_DRIVER_ALREADY_OPEN);
HOLD_VALUE(CuFileCode::handle_not_registered, CU_FILE_HANDLE_NOT_REGISTERED);
HOLD_VALUE(CuFileCode::handle_already_registered, CU_FILE_HANDLE_ALREADY_REGISTERED);
HOLD_VALUE(CuFileCode::device_not_found, CU_FILE_DEVICE_NOT_FOUND);
HOLD_VALUE(CuFileCode::internal_error, CU_FILE_INTERNAL_ERROR);
HOLD_VALUE(CuFileCode::nvfs_setup_error, CU_FILE_NVFS_SETUP_ERROR);
HOLD_VALUE(CuFileCode::io_disabled, CU_FILE_IO_DISABLED);
HOLD_VALUE(CuFileCode::gpu_memory_pinning_failed, CU_FILE_GPU_MEMORY_PINNING_FAILED);
HOLD_VALUE(kCuFileHandleTypeFd, CU_FILE_HANDLE_TYPE_OPAQUE_FD);
HOLD_VALUE(kCuFileStatusLustre, CU_FILE_LUSTRE_SUPPORTED);
HOLD_VALUE(kCuFileStatusNfs, CU_FILE_NFS_SUPPORTED);
HOLD_VALUE(kCuFileStatusGpfs, CU_FILE_GPFS_SUPPORTED);
HOLD_VALUE(kCuFileStatusNvme, CU_FILE_NVME_SUPPORTED);
HOLD_VALUE(kCuFileStatusNvmeOf, CU_FILE_NVMEOF_SUPPORTED);
#if CUDA_VERSION >= 12080
HOLD_VALUE(kCuFileStatusNvmeP2p, CU_FILE_NVME_P2P_SUPPORTED);
#endif
HOLD_VALUE(kCuFileControlAllowCompat, CU_FILE_ALLOW_COMPAT_MODE);

#define HOLD_MEMBER(Ours, ours, Theirs, theirs)                                       \
  static_assert(offsetof(Ours, ours) == offsetof(Theirs, theirs) &&                   \
                    sizeof(decltype(Ours::ours)) == sizeof(decltype(Theirs::theirs)), \
                #Theirs "::" #theirs)
static_assert(sizeof(CuMemcpy2D) == sizeof(CUDA_MEMCPY2D));
HOLD_MEMBER(CuMemcpy2D, source_x_bytes, CUDA_MEMCPY2D, srcXInBytes);
HOLD_MEMBER(CuMemcpy2D, source_y, CUDA_MEMCPY2D, srcY);
HOLD_MEMBER(CuMemcpy2D, source_type, CUDA_MEMCPY2D, srcMemoryType);
HOLD_MEMBER(CuMemcpy2D, source_host, CUDA_MEMCPY2D, srcHost);
HOLD_MEMBER(CuMemcpy2D, source_device, CUDA_MEMCPY2D, srcDevice);
HOLD_MEMBER(CuMemcpy2D, source_array, CUDA_MEMCPY2D, srcArray);
HOLD_MEMBER(CuMemcpy2D, source_pitch, CUDA_MEMCPY2D, srcPitch);
HOLD_MEMBER(CuMemcpy2D, target_x_bytes, CUDA_MEMCPY2D, dstXInBytes);
HOLD_MEMBER(CuMemcpy2D, target_y, CUDA_MEMCPY2D, dstY);
HOLD_MEMBER(CuMemcpy2D, target_type, CUDA_MEMCPY2D, dstMemoryType);
HOLD_MEMBER(CuMemcpy2D, target_host, CUDA_MEMCPY2D, dstHost);
HOLD_MEMBER(CuMemcpy2D, target_device, CUDA_MEMCPY2D, dstDevice);
HOLD_MEMBER(CuMemcpy2D, target_array, CUDA_MEMCPY2D, dstArray);
HOLD_MEMBER(CuMemcpy2D, target_pitch, CUDA_MEMCPY2D, dstPitch);
HOLD_MEMBER(CuMemcpy2D, width_bytes, CUDA_MEMCPY2D, WidthInBytes);
HOLD_MEMBER(CuMemcpy2D, height, CUDA_MEMCPY2D, Height);

static_assert(sizeof(CuFileError) == sizeof(CUfileError_t));
HOLD_MEMBER(CuFileError, code, CUfileError_t, err);
HOLD_MEMBER(CuFileError, cuda, CUfileError_t, cu_err);
static_assert(sizeof(CuFileDescriptor) == sizeof(CUfileDescr_t));
HOLD_MEMBER(CuFileDescriptor, type, CUfileDescr_t, type);
HOLD_MEMBER(CuFileDescriptor, handle, CUfileDescr_t, handle);
HOLD_MEMBER(CuFileDescriptor, fs_ops, CUfileDescr_t, fs_ops);
static_assert(sizeof(CuFileProperties) == sizeof(CUfileDrvProps_t));
HOLD_MEMBER(CuFileProperties, nvfs, CUfileDrvProps_t, nvfs);
using Nvfs = decltype(CuFileProperties::nvfs);
using TheirNvfs = decltype(CUfileDrvProps_t::nvfs);
HOLD_MEMBER(Nvfs, major_version, TheirNvfs, major_version);
HOLD_MEMBER(Nvfs, minor_version, TheirNvfs, minor_version);
HOLD_MEMBER(Nvfs, poll_threshold_kib, TheirNvfs, poll_thresh_size);
HOLD_MEMBER(Nvfs, max_direct_io_kib, TheirNvfs, max_direct_io_size);
HOLD_MEMBER(Nvfs, driver_status, TheirNvfs, dstatusflags);
HOLD_MEMBER(Nvfs, driver_control, TheirNvfs, dcontrolflags);
HOLD_MEMBER(CuFileProperties, features, CUfileDrvProps_t, fflags);
HOLD_MEMBER(CuFileProperties, max_device_cache_kib, CUfileDrvProps_t, max_device_cache_size);
HOLD_MEMBER(CuFileProperties, per_buffer_cache_kib, CUfileDrvProps_t, per_buffer_cache_size);
HOLD_MEMBER(CuFileProperties, max_device_pinned_kib, CUfileDrvProps_t, max_device_pinned_mem_size);
HOLD_MEMBER(CuFileProperties, max_batch_io_size, CUfileDrvProps_t, max_batch_io_size);
HOLD_MEMBER(CuFileProperties, max_batch_io_timeout_ms, CUfileDrvProps_t, max_batch_io_timeout_msecs);

// What the static_asserts must be able to refuse.
using Three = CuResult (*)(int*, unsigned, const void*);
static_assert(!Alike<Three, CUresult (*)(int*, unsigned)>::value);
static_assert(!Alike<Three, CUresult (*)(int*, size_t, const void*)>::value);
static_assert(!Alike<Three, CUresult (*)(size_t*, unsigned, const void*)>::value);
static_assert(!Alike<Three, CUresult (*)(int*, unsigned, void*)>::value);
static_assert(!Alike<Three, void (*)(int*, unsigned, const void*)>::value);

TEST(GpuHeaders, AgreeWithOurDeclarations) {
  // The assertions above are the test; that it was compiled is its result.
  RecordProperty("cuda_version", CUDA_VERSION);
}

}  // namespace
}  // namespace infercluster::gpu

#endif
