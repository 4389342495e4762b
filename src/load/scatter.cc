// SPDX-License-Identifier: Apache-2.0
#include "load/scatter.h"

#include <algorithm>

namespace infercluster::load {

Result<std::uint64_t> scatter_rows(const Rows& rows, std::uint64_t window_offset, std::span<const std::byte> window,
                                   const memory::Span& tensor, memory::Copier& copier) {
  const std::uint64_t window_end = window_offset + window.size();
  std::uint64_t row = 0;
  if (window_offset > rows.file_offset) row = (window_offset - rows.file_offset) / rows.file_stride;
  std::uint64_t copied = 0;
  for (; row < rows.count; ++row) {
    const std::uint64_t row_begin = rows.file_offset + row * rows.file_stride;
    if (row_begin >= window_end) break;
    const std::uint64_t begin = std::max(row_begin, window_offset);
    const std::uint64_t end = std::min(row_begin + rows.row_bytes, window_end);
    if (begin >= end) continue;  // the window starts in the gap behind this row
    const std::uint64_t destination = rows.destination + row * rows.row_bytes + (begin - row_begin);
    IC_ASSERT(destination + (end - begin) <= tensor.bytes);
    memory::Span to = tensor;
    to.address += destination;
    to.bytes = end - begin;
    IC_CHECK(copier.copy(window.data() + (begin - window_offset), to));
    copied += to.bytes;
  }
  return copied;
}

}  // namespace infercluster::load
