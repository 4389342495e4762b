// SPDX-License-Identifier: Apache-2.0
#include "load/scatter.h"

#include <algorithm>

namespace infercluster::load {
namespace {

// What a window of the file holds of one row: [begin, end) of the file.
struct Part {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

}  // namespace

Result<std::uint64_t> scatter_rows(const Rows& rows, std::uint64_t window_offset, const memory::Span& window,
                                   const memory::Span& tensor, memory::Copier& copier) {
  const std::uint64_t window_end = window_offset + window.bytes;
  const auto part_of = [&](std::uint64_t row) {
    const std::uint64_t begin = rows.file_offset + row * rows.file_stride;
    return Part{std::max(begin, window_offset), std::min(begin + rows.row_bytes, window_end)};
  };
  const auto destination_of = [&](std::uint64_t row, const Part& part) {
    return rows.destination + row * rows.row_bytes + (part.begin - (rows.file_offset + row * rows.file_stride));
  };
  std::uint64_t row = 0;
  if (window_offset > rows.file_offset) row = (window_offset - rows.file_offset) / rows.file_stride;
  std::uint64_t copied = 0;
  while (row < rows.count && rows.file_offset + row * rows.file_stride < window_end) {
    const Part part = part_of(row);
    if (part.begin >= part.end) {  // the window starts in the gap behind this row
      ++row;
      continue;
    }
    const memory::Span from = window.part(part.begin - window_offset, part.end - part.begin);
    const std::uint64_t destination = destination_of(row, part);
    // Whole rows go together.
    std::uint64_t whole = 0;
    if (part.end - part.begin == rows.row_bytes && rows.count - row > 1) {
      whole = std::min(rows.count - row, (window_end - part.begin - rows.row_bytes) / rows.file_stride + 1);
    }
    if (whole > 1) {
      const std::uint64_t bytes = whole * rows.row_bytes;
      IC_ASSERT(destination <= tensor.bytes && bytes <= tensor.bytes - destination);
      const memory::Span source =
          window.part(part.begin - window_offset, (whole - 1) * rows.file_stride + rows.row_bytes);
      IC_CHECK(copier.copy_rows(source, tensor.part(destination, bytes),
                                {whole, rows.row_bytes, rows.file_stride, rows.row_bytes}));
      copied += bytes;
      row += whole;
      continue;
    }
    IC_ASSERT(destination <= tensor.bytes && from.bytes <= tensor.bytes - destination);
    IC_CHECK(copier.copy(from, tensor.part(destination, from.bytes)));
    copied += from.bytes;
    ++row;
  }
  return copied;
}

}  // namespace infercluster::load
