// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/strided_copy.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/units.h"

namespace infercluster::checkpoint {
namespace {

using Dimension = StridedCopy::Dimension;

constexpr std::uint64_t kLongRun = 64;           // bytes: a cache line each, so that order is no matter
constexpr std::uint64_t kTileBytes = 16 * kKiB;  // of half a first-level cache
constexpr std::uint64_t kTileElementsMax = 64;   // along a side

std::uint64_t tile_side(std::uint64_t width) {
  std::uint64_t side = kTileElementsMax;
  while (side * side * width > kTileBytes) side /= 2;
  return side;
}

// kWidth 0: `width` bytes, at most kLongRun.
template <std::size_t kWidth>
void copy_line(std::byte* to, std::int64_t to_stride, const std::byte* from, std::int64_t from_stride,
               std::uint64_t count, std::size_t width) {
  for (std::uint64_t i = 0; i < count; ++i) {
    std::memcpy(to, from, kWidth != 0 ? kWidth : width);
    to += to_stride;
    from += from_stride;
  }
}

// Neighbours along `source` are near in `from`, those along `sink` in `to`: through a tile in cache.
template <std::size_t kWidth>
void copy_plane(std::byte* to, const std::byte* from, const Dimension& source, const Dimension& sink,
                std::size_t width) {
  const auto step = static_cast<std::int64_t>(width);
  const std::uint64_t side = tile_side(width);
  std::array<std::byte, kTileBytes> tile;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled before it is read
  for (std::uint64_t i = 0; i < source.count; i += side) {
    const std::uint64_t rows = std::min(side, source.count - i);
    for (std::uint64_t k = 0; k < sink.count; k += side) {
      const std::uint64_t columns = std::min(side, sink.count - k);
      const auto offset = [&](std::int64_t first, std::int64_t second) {
        return static_cast<std::int64_t>(i) * first + static_cast<std::int64_t>(k) * second;
      };
      const std::byte* corner = from + offset(source.from_stride, sink.from_stride);
      for (std::uint64_t column = 0; column < columns; ++column) {
        std::byte* into = tile.data() + column * rows * width;
        if (source.from_stride == step)
          std::memcpy(into, corner, rows * width);
        else
          copy_line<kWidth>(into, step, corner, source.from_stride, rows, width);
        corner += sink.from_stride;
      }
      std::byte* target = to + offset(source.to_stride, sink.to_stride);
      for (std::uint64_t row = 0; row < rows; ++row) {
        copy_line<kWidth>(target, sink.to_stride, tile.data() + row * width, step * static_cast<std::int64_t>(rows),
                          columns, width);
        target += source.to_stride;
      }
    }
  }
}

// What is copied for each index of the dimensions that remain.
struct Inner {
  Dimension source;  // count 1: there is but one dimension
  Dimension sink;
  std::size_t width = 0;
};

template <std::size_t kWidth>
void copy_inner(std::byte* to, const std::byte* from, const Inner& inner) {
  if (inner.source.count == 1)
    copy_line<kWidth>(to, inner.sink.to_stride, from, inner.sink.from_stride, inner.sink.count, inner.width);
  else
    copy_plane<kWidth>(to, from, inner.source, inner.sink, inner.width);
}

using CopyInner = void (*)(std::byte*, const std::byte*, const Inner&);

CopyInner kernel_for(std::uint64_t width) {
  switch (width) {
    case 1:
      return copy_inner<1>;
    case 2:
      return copy_inner<2>;
    case 4:
      return copy_inner<4>;
    case 8:
      return copy_inner<8>;
    case 16:
      return copy_inner<16>;
    default:
      return copy_inner<0>;
  }
}

// `copy` for each index of the dimensions from `next` on.
template <typename Copy>
void for_each_index(const std::vector<Dimension>& dimensions, std::size_t next, std::byte* to, const std::byte* from,
                    const Copy& copy) {
  if (next == dimensions.size()) return copy(to, from);
  const Dimension& dimension = dimensions[next];
  for (std::uint64_t i = 0; i < dimension.count; ++i) {
    for_each_index(dimensions, next + 1, to, from, copy);
    to += dimension.to_stride;
    from += dimension.from_stride;
  }
}

void drop_single(std::vector<Dimension>& dimensions) {
  std::erase_if(dimensions, [](const Dimension& d) { return d.count == 1; });
}

std::size_t nearest(const std::vector<Dimension>& dimensions, std::int64_t Dimension::*stride) {
  const auto found = std::min_element(dimensions.begin(), dimensions.end(), [&](const auto& a, const auto& b) {
    return std::abs(a.*stride) < std::abs(b.*stride);
  });
  return static_cast<std::size_t>(found - dimensions.begin());
}

// Which dimension to part next, and where; nothing: none.
std::pair<std::size_t, std::uint64_t> parting_of(const StridedCopy& item) {
  const auto& dimensions = item.dimensions;
  const bool tiled = item.run_bytes < kLongRun;
  const std::size_t source = nearest(dimensions, &Dimension::from_stride);
  const std::size_t sink = nearest(dimensions, &Dimension::to_stride);
  std::size_t best = dimensions.size();
  for (std::size_t d = 0; d < dimensions.size(); ++d) {
    if (tiled && (d == source || d == sink)) continue;
    if (best == dimensions.size() || std::abs(dimensions[d].to_stride) > std::abs(dimensions[best].to_stride)) best = d;
  }
  if (best < dimensions.size()) return {best, dimensions[best].count / 2};
  best = dimensions[source].count > dimensions[sink].count ? source : sink;
  const std::uint64_t half = align_up(dimensions[best].count / 2, kTileElementsMax);
  return {best, half < dimensions[best].count ? half : 0};
}

void divide_run(const StridedCopy& item, std::uint64_t bytes_max, std::vector<StridedCopy>& parts) {
  for (std::uint64_t at = 0; at < item.run_bytes; at += bytes_max) {
    parts.push_back({item.from + at, item.to + at, std::min(bytes_max, item.run_bytes - at), {}});
  }
}

}  // namespace

std::uint64_t StridedCopy::bytes() const {
  std::uint64_t bytes = run_bytes;
  for (const Dimension& dimension : dimensions) bytes *= dimension.count;
  return bytes;
}

void copy(const StridedCopy& item) {
  if (item.dimensions.empty()) {
    if (item.run_bytes > 0) std::memcpy(item.to, item.from, item.run_bytes);
    return;
  }
  std::vector<Dimension> outer = item.dimensions;
  drop_single(outer);
  std::sort(outer.begin(), outer.end(),
            [](const auto& a, const auto& b) { return std::abs(a.to_stride) > std::abs(b.to_stride); });
  if (item.run_bytes >= kLongRun || outer.empty()) {
    for_each_index(outer, 0, item.to, item.from,
                   [&](std::byte* to, const std::byte* from) { std::memcpy(to, from, item.run_bytes); });
    return;
  }
  Inner inner{{}, outer.back(), item.run_bytes};
  const std::size_t source = nearest(outer, &Dimension::from_stride);
  outer.pop_back();
  if (source < outer.size()) {
    inner.source = outer[source];
    outer.erase(outer.begin() + static_cast<std::ptrdiff_t>(source));
  }
  const CopyInner kernel = kernel_for(item.run_bytes);
  for_each_index(outer, 0, item.to, item.from, [&](std::byte* to, const std::byte* from) { kernel(to, from, inner); });
}

void divide(StridedCopy item, std::uint64_t bytes_max, std::vector<StridedCopy>& parts) {
  std::vector<StridedCopy> waiting;
  waiting.push_back(std::move(item));
  while (!waiting.empty()) {
    StridedCopy next = std::move(waiting.back());
    waiting.pop_back();
    drop_single(next.dimensions);
    if (next.dimensions.empty()) {
      divide_run(next, bytes_max, parts);
      continue;
    }
    const auto [dimension, first] = parting_of(next);
    if (next.bytes() <= bytes_max || first == 0) {
      parts.push_back(std::move(next));
      continue;
    }
    StridedCopy rest = next;
    Dimension& of_rest = rest.dimensions[dimension];
    of_rest.count -= first;
    rest.from += static_cast<std::int64_t>(first) * of_rest.from_stride;
    rest.to += static_cast<std::int64_t>(first) * of_rest.to_stride;
    next.dimensions[dimension].count = first;
    waiting.push_back(std::move(rest));
    waiting.push_back(std::move(next));
  }
}

}  // namespace infercluster::checkpoint
