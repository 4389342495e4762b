// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/result.h"
#include "load/slice.h"
#include "memory/copier.h"

namespace infercluster::load {

// Copies what `window`, the file's bytes from `window_offset` on, holds of `rows` to where the tensor lives. Returns
// the bytes copied.
Result<std::uint64_t> scatter_rows(const Rows& rows, std::uint64_t window_offset, const memory::Span& window,
                                   const memory::Span& tensor, memory::Copier& copier);

}  // namespace infercluster::load
