// SPDX-License-Identifier: Apache-2.0
// The part of cuFile (GPUDirect Storage) that we call, declared by ourselves, as in cuda_api.h.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "gpu/cuda_api.h"

namespace infercluster::gpu {

// CUfileOpError: those that we tell apart. Any other int may come back.
enum class CuFileCode : int {
  success = 0,
  driver_not_initialized = 5001,
  driver_version_mismatch = 5004,
  driver_closing = 5006,
  platform_not_supported = 5007,
  io_not_supported = 5008,
  device_not_supported = 5009,
  nvfs_driver_error = 5010,
  cuda_driver_error = 5011,  // CuFileError::cuda says which
  cuda_pointer_invalid = 5012,
  cuda_memory_type_invalid = 5013,
  cuda_pointer_range_error = 5014,
  cuda_context_mismatch = 5015,
  invalid_mapping_size = 5016,  // over the pinned size; also what the second of two servers on one node gets
  invalid_mapping_range = 5017,
  invalid_file_type = 5018,
  invalid_file_open_flag = 5019,
  direct_io_not_set = 5020,
  invalid_value = 5022,
  memory_already_registered = 5023,
  memory_not_registered = 5024,
  permission_denied = 5025,
  driver_already_open = 5026,
  handle_not_registered = 5027,
  handle_already_registered = 5028,
  device_not_found = 5029,
  internal_error = 5030,
  nvfs_setup_error = 5033,
  io_disabled = 5034,
  gpu_memory_pinning_failed = 5036,
};

struct CuFileError {
  CuFileCode code;
  CuResult cuda;
};

using CuFileHandle = void*;

// CUfileDescr_t
struct CuFileDescriptor {
  int type;  // kCuFileHandleTypeFd
  union {
    int fd;
    void* pointer;
  } handle;
  const void* fs_ops;
};
inline constexpr int kCuFileHandleTypeFd = 1;  // CU_FILE_HANDLE_TYPE_OPAQUE_FD

// Bit numbers in CuFileProperties: CUfileDriverStatusFlags in driver_status, CUfileDriverControlFlags in
// driver_control, CUfileFeatureFlags in features.
inline constexpr unsigned kCuFileStatusLustre = 0;
inline constexpr unsigned kCuFileStatusNfs = 2;
inline constexpr unsigned kCuFileStatusGpfs = 3;
inline constexpr unsigned kCuFileStatusNvme = 4;
inline constexpr unsigned kCuFileStatusNvmeOf = 5;
inline constexpr unsigned kCuFileStatusNvmeP2p = 11;  // CUDA 12.8 and 12.9; deprecated in 13
inline constexpr unsigned kCuFileControlAllowCompat = 1;
inline constexpr unsigned kCuFileFeatureP2p = 4;  // CUDA 13

// CUfileP2PFlags: bit numbers in what cuFileDriverGetP2PFlags writes
inline constexpr unsigned kCuFileP2pPciDma = 0;
inline constexpr unsigned kCuFileP2pNvidiaFs = 1;
inline constexpr unsigned kCuFileP2pDmaBuf = 2;
inline constexpr unsigned kCuFileP2pChipToChip = 3;

// CUfileDrvProps_t. Sizes are in KiB.
struct CuFileProperties {
  struct {
    unsigned major_version;  // of nvidia-fs; 0 without it
    unsigned minor_version;
    std::size_t poll_threshold_kib;
    std::size_t max_direct_io_kib;
    unsigned driver_status;
    unsigned driver_control;
  } nvfs;
  unsigned features;
  unsigned max_device_cache_kib;
  unsigned per_buffer_cache_kib;
  unsigned max_device_pinned_kib;
  unsigned max_batch_io_size;
  unsigned max_batch_io_timeout_ms;
};

// CUFileBoolConfigParameter_t
enum class CuFileBool : int { allow_compat_mode = 1, force_compat_mode = 2, use_pci_p2pdma = 7 };

// X(symbol as libcufile exports it, what it returns, parameters)
// clang-format off
#define IC_CUFILE_FUNCTIONS(X)                                                                                         \
  X(cuFileDriverOpen, CuFileError, ())                                                                                 \
  X(cuFileDriverGetProperties, CuFileError, (CuFileProperties * properties))                                           \
  X(cuFileHandleRegister, CuFileError, (CuFileHandle * handle, CuFileDescriptor * descriptor))                         \
  X(cuFileHandleDeregister, void, (CuFileHandle handle))                                                               \
  X(cuFileBufRegister, CuFileError, (const void* device_base, std::size_t bytes, int flags))                           \
  X(cuFileBufDeregister, CuFileError, (const void* device_base))                                                       \
  X(cuFileRead, ssize_t, (CuFileHandle handle, void* device_base, std::size_t bytes, off_t file_offset,                \
                          off_t device_offset)) /* bytes; -1: see errno; else a negative CuFileCode */
// Not in every version: null then. cuFileDriverClose became _v2 with CUDA 12; parameters came with 12.9, peer-to-peer
// flags with 13.
#define IC_CUFILE_OPTIONAL_FUNCTIONS(X)                                                                                \
  X(cuFileDriverClose_v2, CuFileError, ())                                                                             \
  X(cuFileDriverClose, CuFileError, ())                                                                                \
  X(cuFileGetVersion, CuFileError, (int* version)) /* 1000 * major + 10 * minor */                                     \
  X(cuFileGetParameterBool, CuFileError, (CuFileBool parameter, bool* value))                                          \
  X(cuFileDriverGetP2PFlags, CuFileError, (int status_flag, unsigned* p2p_flags))
// clang-format on

struct CuFileApi {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a parameter list stands in no others
#define IC_CUFILE_MEMBER(symbol, returned, parameters) returned(*symbol) parameters = nullptr;
  IC_CUFILE_FUNCTIONS(IC_CUFILE_MEMBER)
  IC_CUFILE_OPTIONAL_FUNCTIONS(IC_CUFILE_MEMBER)
#undef IC_CUFILE_MEMBER
};

}  // namespace infercluster::gpu
