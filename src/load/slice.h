// SPDX-License-Identifier: Apache-2.0
// Which bytes of a tensor a slice is. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "load/options.h"
#include "safetensors/header.h"

namespace infercluster::load {

// Equal rows at equal distances in a file, which lie one behind the other at their destination.
struct Rows {
  std::uint64_t file_offset = 0;  // of the first row's first byte
  std::uint64_t row_bytes = 0;
  std::uint64_t count = 0;
  std::uint64_t file_stride = 0;  // bytes between the starts of two rows; row_bytes where count is 1
  std::uint64_t destination = 0;  // bytes from the start of the (sliced) tensor to the first row

  [[nodiscard]] std::uint64_t file_end() const { return file_offset + (count - 1) * file_stride + row_bytes; }
  [[nodiscard]] std::uint64_t bytes() const { return count * row_bytes; }
};

struct SlicedTensor {
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes = 0;
  std::vector<Rows>
      rows;  // by file offset of their first row; empty when bytes is 0. One with count 1: contiguous in the file
};

// More pieces than this are not planned one by one; the slice is then refused with a word on what to do.
inline constexpr std::size_t kRowGroupsMax = 1u << 20;

// The whole tensor, `tensor_offset` being the file offset of its first byte.
SlicedTensor whole_tensor(const safetensors::Tensor& tensor, std::uint64_t tensor_offset);

// The part that `rule` names. Errors (invalid_argument, with the tensor's name): a range outside of the dimension or
// reversed, more ranges than dimensions, a shard's rank not below its world, a dtype of less than a byte that the slice
// would cut within a byte.
Result<SlicedTensor> slice_tensor(const safetensors::Tensor& tensor, std::uint64_t tensor_offset,
                                  const SliceRule& rule);

}  // namespace infercluster::load
