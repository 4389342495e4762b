// SPDX-License-Identifier: Apache-2.0
// Inside of the gpu module: the library and its driver, which the process opens once.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "gpu/cufile.h"
#include "gpu/cufile_api.h"

namespace infercluster::gpu {

// The library's functions, remembered as driver() remembers CUDA's: found, or why not. Opens no driver.
Result<const CuFileApi*> cufile_library();

// "cannot ACTION: CALL failed with code 5016 (...)". Where cuFile says that CUDA failed, CUDA's name follows.
Error cufile_error(const Driver& cuda, CuFileError status, std::string_view call, std::string_view action);

// An open driver.
struct CuFileDriver {
  // The process's, opened on `device` if it is not open.
  static Result<std::shared_ptr<const CuFileDriver>> get(const std::shared_ptr<Device>& device);

  explicit CuFileDriver(const CuFileApi& functions) : api(functions) {}
  ~CuFileDriver();
  CuFileDriver(const CuFileDriver&) = delete;
  CuFileDriver& operator=(const CuFileDriver&) = delete;

  const CuFileApi& api;  // lives as long as the process
  bool ours = false;     // opened by us, to be closed by us
  int version = 0;
  CuFileProperties properties{};
  bool compat_allowed = false;
  GdsMode mode = GdsMode::none;

 private:
  static Result<std::shared_ptr<const CuFileDriver>> open(const std::shared_ptr<Device>& device);
  [[nodiscard]] bool parameter(CuFileBool which, bool otherwise) const;
  [[nodiscard]] bool peer_to_peer() const;
  [[nodiscard]] GdsMode ask_mode() const;
};

}  // namespace infercluster::gpu
