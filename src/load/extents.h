// SPDX-License-Identifier: Apache-2.0
// Arithmetic on ranges of a file. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace infercluster::load {

struct StagedRows;
struct PlannedTransfer;

struct Extent {  // bytes [begin, end) of a file
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  [[nodiscard]] std::uint64_t length() const { return end - begin; }
  friend bool operator==(const Extent&, const Extent&) = default;
};

// Widened to multiples of `granularity` (a power of two).
Extent aligned(const Extent& extent, std::uint64_t granularity);

// Sorted, with those that touch or overlap made one.
std::vector<Extent> coalesced(std::vector<Extent> extents);

// Adds the aligned extents that hold `rows` (all of one tensor): row by row, or from the first to the last byte,
// whichever reads fewer bytes.
void append_row_extents(std::span<const StagedRows> rows, std::uint64_t granularity, std::vector<Extent>& extents);

// Fills PlannedTransfer::scatter: for each transfer (ascending, disjoint) which of `rows` have bytes in it.
void assign_scatter(std::span<PlannedTransfer> transfers, std::span<const StagedRows> rows);

}  // namespace infercluster::load
