// SPDX-License-Identifier: Apache-2.0
// Why a kernel refuses io_uring, in words.
#pragma once

#include <optional>

#include "base/error.h"

namespace infercluster::io {

// `disabled` is the value of /proc/sys/kernel/io_uring_disabled where that file exists (Linux 6.6). The hint is the
// remedy.
Error uring_refusal(int system_errno, std::optional<int> disabled);

}  // namespace infercluster::io
