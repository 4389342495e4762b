// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "load/repository.h"

namespace infercluster::python {

// Shared with the jobs that run on it, not through Python's reference counts: a thread of the core may be the last to
// let go.
struct Repository {
  std::shared_ptr<const load::Repository> inner;
};

}  // namespace infercluster::python
