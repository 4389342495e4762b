// SPDX-License-Identifier: Apache-2.0
#include "load/extents.h"

#include <algorithm>

#include "base/units.h"
#include "load/plan.h"

namespace infercluster::load {
namespace {

// More rows than this of one tensor are read from the first to the last, with what lies between.
constexpr std::uint64_t kRowExtentsMax = 1u << 16;

// Has the group any byte of a row within [begin, end)?
bool touches(const Rows& rows, std::uint64_t begin, std::uint64_t end) {
  if (rows.file_offset >= end || rows.file_end() <= begin) return false;
  if (begin <= rows.file_offset) return true;
  const std::uint64_t row =
      (begin - rows.file_offset) / rows.file_stride;  // the last one that starts at or before `begin`
  const std::uint64_t start = rows.file_offset + row * rows.file_stride;
  if (row < rows.count && begin < start + rows.row_bytes) return true;
  return row + 1 < rows.count && start + rows.file_stride < end;
}

}  // namespace

Extent aligned(const Extent& extent, std::uint64_t granularity) {
  return {align_down(extent.begin, granularity), align_up(extent.end, granularity)};
}

std::vector<Extent> coalesced(std::vector<Extent> extents) {
  if (!std::is_sorted(extents.begin(), extents.end(),
                      [](const Extent& a, const Extent& b) { return a.begin < b.begin; })) {
    std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  }
  std::size_t kept = 0;
  for (const Extent& extent : extents) {
    if (kept > 0 && extent.begin <= extents[kept - 1].end) {
      extents[kept - 1].end = std::max(extents[kept - 1].end, extent.end);
    } else {
      extents[kept++] = extent;
    }
  }
  extents.resize(kept);
  return extents;
}

void append_row_extents(std::span<const StagedRows> rows, std::uint64_t granularity, std::vector<Extent>& extents) {
  if (rows.empty()) return;
  Extent whole{UINT64_MAX, 0};
  std::uint64_t count = 0;
  for (const StagedRows& group : rows) {
    whole.begin = std::min(whole.begin, group.rows.file_offset);
    whole.end = std::max(whole.end, group.rows.file_end());
    count += std::min(group.rows.count, kRowExtentsMax + 1);
  }
  whole = aligned(whole, granularity);
  if (count <= kRowExtentsMax) {
    std::vector<Extent> by_row;
    by_row.reserve(count);
    for (const StagedRows& group : rows) {
      for (std::uint64_t i = 0; i < group.rows.count; ++i) {
        const std::uint64_t begin = group.rows.file_offset + i * group.rows.file_stride;
        by_row.push_back(aligned({begin, begin + group.rows.row_bytes}, granularity));
      }
    }
    by_row = coalesced(std::move(by_row));
    std::uint64_t bytes = 0;
    for (const Extent& extent : by_row) bytes += extent.length();
    if (bytes < whole.length()) {
      extents.insert(extents.end(), by_row.begin(), by_row.end());
      return;
    }
  }
  extents.push_back(whole);
}

void assign_scatter(std::span<PlannedTransfer> transfers, std::span<const StagedRows> rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Rows& group = rows[i].rows;
    auto at = std::upper_bound(
        transfers.begin(), transfers.end(), group.file_offset,
        [](std::uint64_t offset, const PlannedTransfer& transfer) { return offset < transfer.file_offset; });
    if (at != transfers.begin()) --at;
    for (; at != transfers.end() && at->file_offset < group.file_end(); ++at) {
      if (touches(group, at->file_offset, at->file_offset + at->length))
        at->scatter.push_back(static_cast<std::uint32_t>(i));
    }
  }
}

}  // namespace infercluster::load
