// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/box_copy.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace infercluster::checkpoint {
namespace {

using Numbers = std::vector<std::uint64_t>;

// Bits between two neighbours of each dimension, row-major. Within a tensor that was checked: cannot wrap.
Numbers bit_strides_of(const Numbers& lengths, std::uint64_t bits) {
  Numbers strides(lengths.size(), bits);
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

struct BitDimension {
  std::uint64_t count = 1;
  std::uint64_t file_stride = 0;  // bits
  std::int64_t memory_stride = 0;
};

// What neighbours on both sides are, merged: the innermost into `run` (bits), others into one dimension.
std::vector<BitDimension> merge(const std::vector<BitDimension>& all, std::uint64_t& run) {
  std::vector<BitDimension> merged;  // innermost first
  for (std::size_t d = all.size(); d-- > 0;) {
    const BitDimension& next = all[d];
    if (next.count == 1) continue;
    if (merged.empty() && next.file_stride == run && next.memory_stride == static_cast<std::int64_t>(run)) {
      run *= next.count;
      continue;
    }
    if (!merged.empty()) {
      BitDimension& inner = merged.back();
      if (next.file_stride == inner.file_stride * inner.count &&
          next.memory_stride == inner.memory_stride * static_cast<std::int64_t>(inner.count)) {
        inner.count *= next.count;
        continue;
      }
    }
    merged.push_back(next);
  }
  std::reverse(merged.begin(), merged.end());
  return merged;
}

Error refused(const Piece& piece, const std::string& what) {
  return Error(ErrorCode::invalid_argument, what)
      .with_tensor(piece.tensor)
      .with_hint("Give it in contiguous memory, row-major");
}

// Whether each element has bytes of its own: each dimension steps over all that is within the ones of smaller steps.
bool are_apart(const Piece& piece, const Strides& strides) {
  std::vector<std::size_t> order;
  for (std::size_t d = 0; d < strides.size(); ++d) {
    if (piece.box.lengths[d] > 1) order.push_back(d);
  }
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return std::abs(strides[a]) < std::abs(strides[b]); });
  std::uint64_t span = safetensors::bits_of(piece.dtype) / 8;
  for (const std::size_t d : order) {
    const auto stride = static_cast<std::uint64_t>(std::abs(strides[d]));
    if (stride < span) return false;
    span += stride * (piece.box.lengths[d] - 1);
  }
  return true;
}

}  // namespace

Status check_strides(const Piece& piece, const Strides& strides, MemoryUse use) {
  if (strides.empty()) return {};
  if (strides.size() != piece.box.lengths.size()) {
    return refused(piece, "it has " + std::to_string(piece.box.lengths.size()) + " dimensions and " +
                              std::to_string(strides.size()) + " strides");
  }
  if (safetensors::bits_of(piece.dtype) % 8 != 0)
    return refused(piece, "elements of less than a byte (" + std::string(safetensors::name_of(piece.dtype)) +
                              ") cannot lie at strides");
  if (std::find(piece.box.lengths.begin(), piece.box.lengths.end(), 0) != piece.box.lengths.end()) return {};
  std::int64_t reach = 1 << 10;  // more than an element
  for (std::size_t d = 0; d < strides.size(); ++d) {
    std::int64_t step = 0;
    if (piece.box.lengths[d] == 1) continue;  // it may be anything
    if (strides[d] == INT64_MIN || piece.box.lengths[d] > INT64_MAX ||
        __builtin_mul_overflow(std::abs(strides[d]), static_cast<std::int64_t>(piece.box.lengths[d] - 1), &step) ||
        step > INT64_MAX / 8 || __builtin_add_overflow(reach, step * 8, &reach))
      return refused(piece, "its strides reach beyond any memory");
  }
  if (use == MemoryUse::write && !are_apart(piece, strides))
    return refused(piece, "its strides let elements overlap, so that not all could be loaded");
  return {};
}

Result<std::optional<BoxCopy>> BoxCopy::between(const manifest::Chunk& chunk, const Box& wanted,
                                                const Strides& strides) {
  const auto common = intersection(chunk.box, wanted);
  if (!common) return std::optional<BoxCopy>();
  const std::uint64_t bits = safetensors::bits_of(chunk.dtype);
  const Numbers file_strides = bit_strides_of(chunk.box.lengths, bits);
  const Numbers row_major = bit_strides_of(wanted.lengths, bits);
  std::vector<BitDimension> all;
  std::uint64_t file_base = 0;  // bits
  std::int64_t memory_base = 0;
  for (std::size_t d = 0; d < common->lengths.size(); ++d) {
    file_base += (common->offsets[d] - chunk.box.offsets[d]) * file_strides[d];
    if (wanted.lengths[d] == 1) continue;  // its stride may be anything
    const std::int64_t memory_stride = strides.empty() ? static_cast<std::int64_t>(row_major[d]) : strides[d] * 8;
    memory_base += static_cast<std::int64_t>(common->offsets[d] - wanted.offsets[d]) * memory_stride;
    all.push_back({common->lengths[d], file_strides[d], memory_stride});
  }
  std::uint64_t run = bits;
  const std::vector<BitDimension> merged = merge(all, run);
  std::uint64_t odd = run | file_base | static_cast<std::uint64_t>(memory_base);
  for (const BitDimension& d : merged) odd |= d.file_stride | static_cast<std::uint64_t>(d.memory_stride);
  if (odd % 8 != 0) {
    return Error(ErrorCode::unsupported, "the boxes " + to_string(chunk.box) + " and " + to_string(wanted) +
                                             " part within a byte, since an element has " + std::to_string(bits) +
                                             " bits")
        .with_tensor(chunk.tensor);
  }
  BoxCopy copy;
  copy.chunk_begin_ = chunk.begin;
  copy.chunk_end_ = chunk.begin + chunk.bytes;
  copy.file_base_ = chunk.begin + file_base / 8;
  copy.memory_base_ = memory_base / 8;
  copy.run_bytes_ = run / 8;
  for (const BitDimension& d : merged) copy.dimensions_.push_back({d.count, d.file_stride / 8, d.memory_stride / 8});
  copy.spans_.assign(merged.size() + 1, copy.run_bytes_);
  for (std::size_t d = merged.size(); d-- > 0;)
    copy.spans_[d] = copy.spans_[d + 1] + copy.dimensions_[d].file_stride * (copy.dimensions_[d].count - 1);
  copy.row_bytes_ = copy.run_bytes_;
  copy.row_dimensions_ = merged.size();
  while (copy.row_dimensions_ > 0 && copy.dimensions_[copy.row_dimensions_ - 1].file_stride == copy.row_bytes_)
    copy.row_bytes_ *= copy.dimensions_[--copy.row_dimensions_].count;
  for (std::size_t d = 0; d < copy.row_dimensions_; ++d) copy.rows_ *= copy.dimensions_[d].count;
  return std::optional<BoxCopy>(std::move(copy));
}

std::uint64_t BoxCopy::file_offset(std::uint64_t row) const {
  std::uint64_t offset = file_base_;
  for (std::size_t d = row_dimensions_; d-- > 0;) {
    offset += row % dimensions_[d].count * dimensions_[d].file_stride;
    row /= dimensions_[d].count;
  }
  return offset;
}

std::vector<BoxCopy::Part> BoxCopy::parts(std::uint64_t begin, std::uint64_t end) const {
  std::vector<Part> all;
  begin = std::max(begin, file_base_);
  if (begin < end) add_parts(0, {file_base_, memory_base_, 0, {}}, begin - file_base_, end - file_base_, all);
  return all;
}

// `at`: index 0 of the dimensions from `dimension` on. `begin` and `end` count from its file offset.
void BoxCopy::add_parts(std::size_t dimension, Part at, std::uint64_t begin, std::uint64_t end,
                        std::vector<Part>& all) const {
  end = std::min(end, spans_[dimension]);
  if (begin >= end) return;
  if (dimension == dimensions_.size()) {
    all.push_back({at.file_offset + begin, at.memory_offset + static_cast<std::int64_t>(begin), end - begin, {}});
    return;
  }
  const Dimension& own = dimensions_[dimension];
  const std::uint64_t inner = spans_[dimension + 1];
  const auto part_at = [&](std::uint64_t i) {
    return Part{at.file_offset + i * own.file_stride,
                at.memory_offset + static_cast<std::int64_t>(i) * own.memory_stride,
                run_bytes_,
                {}};
  };
  std::uint64_t first = begin / own.file_stride;
  const auto add_some_of = [&](std::uint64_t i) {
    const std::uint64_t base = i * own.file_stride;
    if (base < end) add_parts(dimension + 1, part_at(i), begin > base ? begin - base : 0, end - base, all);
  };
  if (begin > first * own.file_stride) add_some_of(first++);
  // Those that lie in it whole.
  std::uint64_t last = end < inner ? 0 : (end - inner) / own.file_stride + 1;
  last = std::max(first, std::min(last, own.count));
  if (last > first) {
    Part whole = part_at(first);
    whole.dimensions.assign(dimensions_.begin() + static_cast<std::ptrdiff_t>(dimension), dimensions_.end());
    whole.dimensions.front().count = last - first;
    all.push_back(std::move(whole));
  }
  if (last < own.count) add_some_of(last);
}

StridedCopy from_memory(const BoxCopy::Part& part, const std::byte* memory, std::byte* file, std::uint64_t file_begin) {
  StridedCopy copy{memory + part.memory_offset, file + (part.file_offset - file_begin), part.run_bytes, {}};
  for (const BoxCopy::Dimension& d : part.dimensions)
    copy.dimensions.push_back({d.count, d.memory_stride, static_cast<std::int64_t>(d.file_stride)});
  return copy;
}

StridedCopy to_memory(const BoxCopy::Part& part, const std::byte* file, std::uint64_t file_begin, std::byte* memory) {
  StridedCopy copy{file + (part.file_offset - file_begin), memory + part.memory_offset, part.run_bytes, {}};
  for (const BoxCopy::Dimension& d : part.dimensions)
    copy.dimensions.push_back({d.count, static_cast<std::int64_t>(d.file_stride), d.memory_stride});
  return copy;
}

}  // namespace infercluster::checkpoint
