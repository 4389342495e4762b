// SPDX-License-Identifier: Apache-2.0
#include "load/slice.h"

#include <algorithm>
#include <string>

#include "base/checked.h"

namespace infercluster::load {
namespace {

Error refuse(const safetensors::Tensor& tensor, std::string message) {
  return Error(ErrorCode::invalid_argument, std::move(message)).with_tensor(tensor.name);
}

std::string in_words(const std::vector<std::uint64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

// One range per dimension of the tensor.
Result<std::vector<Range>> ranges_of(const safetensors::Tensor& tensor, const SliceRule& rule) {
  std::vector<Range> ranges;
  for (const std::uint64_t size : tensor.shape) ranges.push_back({0, size});
  if (rule.shard) {
    const Shard& shard = *rule.shard;
    if (shard.world == 0 || shard.rank >= shard.world) {
      return refuse(tensor,
                    "rank " + std::to_string(shard.rank) + " is not one of " + std::to_string(shard.world) + " ranks");
    }
    if (shard.dimension >= ranges.size()) {
      if (shard.without_dimension == Shard::WithoutDimension::whole) return ranges;
      return refuse(tensor, "cannot be cut in dimension " + std::to_string(shard.dimension) + ": its shape is " +
                                in_words(tensor.shape));
    }
    const std::uint64_t size = tensor.shape[shard.dimension];
    const std::uint64_t piece = size / shard.world + (size % shard.world == 0 ? 0 : 1);
    const std::uint64_t begin = std::min(size, checked_multiply<std::uint64_t>(piece, shard.rank).value_or(size));
    ranges[shard.dimension] = {begin, begin + std::min(piece, size - begin)};
    return ranges;
  }
  if (rule.ranges.size() > ranges.size()) {
    return refuse(tensor, "has " + std::to_string(ranges.size()) + " dimensions, and the slice names " +
                              std::to_string(rule.ranges.size()));
  }
  for (std::size_t i = 0; i < rule.ranges.size(); ++i) {
    const Range& range = rule.ranges[i];
    if (range.begin > range.end || range.end > tensor.shape[i]) {
      return refuse(tensor, "slice " + std::to_string(range.begin) + ":" + std::to_string(range.end) +
                                " of dimension " + std::to_string(i) + " is outside of its shape " +
                                in_words(tensor.shape));
    }
    ranges[i] = range;
  }
  return ranges;
}

// One dimension, or several adjacent ones that are whole and so count as one.
struct Axis {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t size = 0;

  [[nodiscard]] bool whole() const { return begin == 0 && end == size; }
  [[nodiscard]] std::uint64_t length() const { return end - begin; }
};

// Merges an axis into the next inner one where that one is whole: (a, whole b) walks memory as one axis of a * b.
std::vector<Axis> merged_axes(const std::vector<Range>& ranges, const std::vector<std::uint64_t>& shape) {
  std::vector<Axis> axes;
  for (std::size_t i = ranges.size(); i-- > 0;) {
    const Axis axis{ranges[i].begin, ranges[i].end, shape[i]};
    if (!axes.empty() && axes.back().whole()) {
      const std::uint64_t inner = axes.back().size;
      axes.back() = {axis.begin * inner, axis.end * inner, axis.size * inner};
    } else {
      axes.push_back(axis);
    }
  }
  std::reverse(axes.begin(), axes.end());
  return axes;
}

}  // namespace

SlicedTensor whole_tensor(const safetensors::Tensor& tensor, std::uint64_t tensor_offset) {
  SlicedTensor sliced{tensor.shape, tensor.bytes(), {}};
  if (sliced.bytes > 0) sliced.rows.push_back({tensor_offset, sliced.bytes, 1, sliced.bytes, 0});
  return sliced;
}

Result<SlicedTensor> slice_tensor(const safetensors::Tensor& tensor, std::uint64_t tensor_offset,
                                  const SliceRule& rule) {
  IC_TRY(const std::vector<Range> ranges, ranges_of(tensor, rule));
  SlicedTensor sliced;
  std::uint64_t elements =
      1;  // no overflow: the header's check bounds the whole tensor's bits by 64 bits, unless a dimension is 0
  for (const Range& range : ranges) {
    sliced.shape.push_back(range.end - range.begin);
  }
  if (tensor.bytes() == 0 || std::find(sliced.shape.begin(), sliced.shape.end(), 0) != sliced.shape.end())
    return sliced;
  for (const std::uint64_t length : sliced.shape) elements *= length;

  std::vector<Axis> axes = merged_axes(ranges, tensor.shape);
  if (axes.empty()) axes.push_back({0, 1, 1});
  const unsigned bits = safetensors::bits_of(tensor.dtype);
  const Axis inner = axes.back();
  if (inner.begin * bits % 8 != 0 || inner.length() * bits % 8 != 0 || inner.size * bits % 8 != 0) {
    return refuse(tensor, "the slice would cut a byte that holds several elements")
        .with_hint("Slice the last dimension at whole bytes");
  }
  sliced.bytes = elements * bits / 8;
  const std::uint64_t row_bytes = inner.length() * bits / 8;
  const std::uint64_t inner_size = inner.size * bits / 8;
  const std::uint64_t row_start = tensor_offset + inner.begin * bits / 8;
  if (axes.size() == 1) {
    sliced.rows.push_back({row_start, row_bytes, 1, row_bytes, 0});
    return sliced;
  }
  // The two innermost axes make one group of rows; the axes outside of them enumerate groups.
  const Axis middle = axes[axes.size() - 2];
  std::uint64_t groups = 1;
  for (std::size_t i = 0; i + 2 < axes.size(); ++i) groups *= axes[i].length();
  if (groups > kRowGroupsMax) {
    return refuse(tensor, "the slice is made of " + std::to_string(groups) + " pieces, more than " +
                              std::to_string(kRowGroupsMax))
        .with_hint("Load the tensor whole and slice it in memory");
  }
  for (std::uint64_t group = 0; group < groups; ++group) {
    std::uint64_t rest = group;
    std::uint64_t stride = middle.size * inner_size;
    std::uint64_t offset = row_start + middle.begin * inner_size;
    for (std::size_t i = axes.size() - 2; i-- > 0;) {
      offset += (axes[i].begin + rest % axes[i].length()) * stride;
      rest /= axes[i].length();
      stride *= axes[i].size;
    }
    sliced.rows.push_back({offset, row_bytes, middle.length(), inner_size, group * middle.length() * row_bytes});
  }
  return sliced;
}

}  // namespace infercluster::load
