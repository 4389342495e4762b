// SPDX-License-Identifier: Apache-2.0
// The io_uring backend, for backend.cc alone.
#pragma once

#include <memory>

#include "base/result.h"
#include "io/backend.h"

namespace infercluster::io {

// Fails with the errno of the system call that was refused. Needs Linux 5.11 (waits with a timeout).
Result<std::unique_ptr<Backend>> open_uring_backend(const BackendOptions& options);

// Makes a small ring and throws it away: finds a refusal of any of the three system calls.
Status try_uring();

}  // namespace infercluster::io
