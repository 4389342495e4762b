// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/box_copy.h"

#include <algorithm>
#include <cstring>

namespace infercluster::checkpoint {
namespace {

using Numbers = std::vector<std::uint64_t>;

// Elements between two neighbours of each dimension, row-major. Within a tensor that was checked: cannot wrap.
Numbers strides_of(const Numbers& lengths) {
  Numbers strides(lengths.size(), 1);
  for (std::size_t d = lengths.size(); d-- > 1;) strides[d - 1] = strides[d] * lengths[d];
  return strides;
}

// Nothing: no element in common.
std::optional<Box> intersection(const Box& a, const Box& b) {
  Box common;
  for (std::size_t d = 0; d < a.offsets.size(); ++d) {
    const std::uint64_t begin = std::max(a.offsets[d], b.offsets[d]);
    const std::uint64_t end = std::min(a.offsets[d] + a.lengths[d], b.offsets[d] + b.lengths[d]);
    if (begin >= end) return std::nullopt;
    common.offsets.push_back(begin);
    common.lengths.push_back(end - begin);
  }
  return common;
}

// The first dimension that belongs to a row: all after it are whole on both sides.
std::size_t first_row_dimension(const Box& common, const Box& chunk, const Box& wanted) {
  std::size_t d = common.lengths.size();
  while (d > 0) {
    --d;
    if (common.lengths[d] != chunk.lengths[d] || common.lengths[d] != wanted.lengths[d]) break;
  }
  return d;
}

}  // namespace

Result<std::optional<BoxCopy>> BoxCopy::between(const manifest::Chunk& chunk, const Box& wanted, std::byte* to) {
  const auto common = intersection(chunk.box, wanted);
  if (!common) return std::optional<BoxCopy>();
  const std::uint64_t bits = safetensors::bits_of(chunk.dtype);
  const Numbers file_strides = strides_of(chunk.box.lengths);
  const Numbers target_strides = strides_of(wanted.lengths);
  const std::size_t dimensions = common->lengths.size();
  const std::size_t row_dimension = first_row_dimension(*common, chunk.box, wanted);

  BoxCopy copy;
  copy.to_ = to;
  copy.chunk_begin_ = chunk.begin;
  copy.chunk_end_ = chunk.begin + chunk.bytes;
  std::uint64_t row = 1;
  std::uint64_t file_base = 0;
  std::uint64_t target_base = 0;
  std::uint64_t odd = 0;  // bits of all that must be whole bytes
  for (std::size_t d = 0; d < dimensions; ++d) {
    file_base += (common->offsets[d] - chunk.box.offsets[d]) * file_strides[d];
    target_base += (common->offsets[d] - wanted.offsets[d]) * target_strides[d];
    if (d >= row_dimension) {
      row *= common->lengths[d];
      continue;
    }
    copy.counts_.push_back(common->lengths[d]);
    copy.rows_ *= common->lengths[d];
    if (common->lengths[d] > 1) odd |= file_strides[d] * bits | target_strides[d] * bits;
    copy.file_strides_.push_back(file_strides[d] * bits / 8);
    copy.target_strides_.push_back(target_strides[d] * bits / 8);
  }
  odd |= row * bits | file_base * bits | target_base * bits;
  if (odd % 8 != 0) {
    return Error(ErrorCode::unsupported, "the boxes " + to_string(chunk.box) + " and " + to_string(wanted) +
                                             " part within a byte, since an element has " + std::to_string(bits) +
                                             " bits")
        .with_tensor(chunk.tensor);
  }
  copy.row_bytes_ = row * bits / 8;
  copy.file_base_ = chunk.begin + file_base * bits / 8;
  copy.target_base_ = target_base * bits / 8;
  return std::optional<BoxCopy>(std::move(copy));
}

std::uint64_t BoxCopy::offset_by(std::uint64_t row, const Numbers& strides) const {
  std::uint64_t offset = 0;
  for (std::size_t d = counts_.size(); d-- > 0;) {
    offset += row % counts_[d] * strides[d];
    row /= counts_[d];
  }
  return offset;
}

std::uint64_t BoxCopy::file_offset(std::uint64_t row) const {
  return file_base_ + offset_by(row, file_strides_);
}

std::uint64_t BoxCopy::target_offset(std::uint64_t row) const {
  return target_base_ + offset_by(row, target_strides_);
}

void BoxCopy::copy(const std::byte* bytes, std::uint64_t offset, std::uint64_t length) const {
  const std::uint64_t end = offset + length;
  // The first row that ends behind `offset`.
  std::uint64_t low = 0;
  std::uint64_t high = rows_;
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (file_offset(middle) + row_bytes_ > offset)
      high = middle;
    else
      low = middle + 1;
  }
  for (std::uint64_t row = low; row < rows_; ++row) {
    const std::uint64_t begin = file_offset(row);
    if (begin >= end) return;
    const std::uint64_t from = std::max(begin, offset);
    const std::uint64_t until = std::min(begin + row_bytes_, end);
    std::memcpy(to_ + target_offset(row) + (from - begin), bytes + (from - offset), until - from);
  }
}

}  // namespace infercluster::checkpoint
