// SPDX-License-Identifier: Apache-2.0
// The backend of threads that call pread(2), for backend.cc alone.
#pragma once

#include <memory>

#include "base/result.h"
#include "io/backend.h"

namespace infercluster::io {

Result<std::unique_ptr<Backend>> open_thread_backend(const BackendOptions& options);

}  // namespace infercluster::io
