// SPDX-License-Identifier: Apache-2.0
// Copies between memories whose elements lie at strides: transposed, channels last, sliced, expanded tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace infercluster::checkpoint {

// Equal runs of bytes, an array of them on each side. The sides do not overlap, and no two runs of `to` do.
struct StridedCopy {
  struct Dimension {
    std::uint64_t count = 1;       // at least 1
    std::int64_t from_stride = 0;  // bytes; 0 and negative ones too
    std::int64_t to_stride = 0;
  };
  const std::byte* from = nullptr;  // the run at index 0 of all dimensions
  std::byte* to = nullptr;
  std::uint64_t run_bytes = 0;
  std::vector<Dimension> dimensions;  // of the runs, in any order; none: one run

  [[nodiscard]] std::uint64_t bytes() const;
};

// Short runs whose neighbours lie elsewhere on the two sides are copied in tiles, so that each cache line is fetched
// once.
void copy(const StridedCopy& item);

// Appends parts of at most about `bytes_max` bytes, none of which needs more cache lines than its share.
void divide(StridedCopy item, std::uint64_t bytes_max, std::vector<StridedCopy>& parts);

}  // namespace infercluster::checkpoint
