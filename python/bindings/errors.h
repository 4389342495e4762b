// SPDX-License-Identifier: Apache-2.0
// Errors as values become Python exceptions here, and only here.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "base/result.h"
#include "gil.h"

namespace infercluster::python {

// Raises what infercluster._errors.exception() makes of `error`. The caller holds the GIL.
[[noreturn]] void raise(const Error& error);

template <typename T>
T unwrap(Result<T>&& result) {
  if (!result.ok()) raise(result.error());
  return std::move(result).value();
}

inline void unwrap(Status&& status) {
  if (!status.ok()) raise(status.error());
}

}  // namespace infercluster::python
