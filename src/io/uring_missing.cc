// SPDX-License-Identifier: Apache-2.0
// In the place of uring_backend.cc where the build has no liburing: threads read.
#include "io/uring_backend.h"

namespace infercluster::io {

Result<std::unique_ptr<Backend>> open_uring_backend(const BackendOptions& options) {
  static_cast<void>(options);
  return try_uring().error();
}

Status try_uring() {
  return Error(ErrorCode::unsupported, "io_uring was left out of this build")
      .with_hint("Build with liburing (Debian: liburing-dev) to have it");
}

}  // namespace infercluster::io
