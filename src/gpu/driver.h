// SPDX-License-Identifier: Apache-2.0
// The CUDA driver library, found at run time. A machine without it runs everything that needs no GPU.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "gpu/cuda_api.h"

namespace infercluster::gpu {

// CUDA 12.0 (1000 * major + 10 * minor): the oldest driver whose functions are those of cuda_api.h.
inline constexpr int kCudaVersionMin = 12000;

// "12.4" for 12040.
std::string cuda_version_text(int version);

// Has the context gone, and with it all that it held? Every later call says so too.
bool is_lost(CuResult result);

// A library that is loaded for as long as the process lives, and initialized (cuInit). Thread-safe.
class Driver {
 public:
  // What driver() does, without remembering it. `library` is a path or a name for dlopen(3); empty: "not there".
  // Errors (unsupported): not found or a symbol missing, an older version, or what cuInit said.
  static Result<Driver> load(const std::string& library);

  [[nodiscard]] const CudaApi& api() const { return api_; }
  [[nodiscard]] int version() const { return version_; }                 // CUDA version that the driver supports
  [[nodiscard]] const std::string& library() const { return library_; }  // as it was asked for

  // The error of a call that failed, with CUDA's own name and text: "cannot ACTION: CALL failed with NAME (TEXT)".
  [[nodiscard]] std::string describe(CuResult result) const;  // "NAME (TEXT, NUMBER)"
  [[nodiscard]] Error error(CuResult result, std::string_view call, std::string_view action) const;

 private:
  Driver() = default;
  Status check_version();

  CudaApi api_;
  int version_ = 0;
  std::string library_;
};

// The driver of this process: libcuda.so.1, or what the environment variable INFERCLUSTER_LIBCUDA names (empty: none).
// The first call loads it and touches no device; what it found, or why it found nothing, is remembered. In a forked
// child of a process that has called it this is an error: CUDA does not survive a fork.
Result<const Driver*> driver();

// May this process call the driver? Not in a forked child: destructors leave everything to the parent there.
bool may_call_driver();

}  // namespace infercluster::gpu
