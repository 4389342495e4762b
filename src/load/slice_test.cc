// SPDX-License-Identifier: Apache-2.0
#include "load/slice.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace infercluster::load {
namespace {

safetensors::Tensor tensor_of(safetensors::Dtype dtype, std::vector<std::uint64_t> shape) {
  const std::uint64_t bytes = safetensors::tensor_bytes(dtype, shape).value();
  return {"t", dtype, std::move(shape), 0, bytes};
}

// The file offsets of every byte of the slice in C order, one element after the other.
std::vector<std::uint64_t> expected_offsets(const safetensors::Tensor& tensor, const std::vector<Range>& ranges,
                                            std::uint64_t base) {
  const std::uint64_t size = safetensors::bits_of(tensor.dtype) / 8;
  std::vector<std::uint64_t> offsets;
  std::vector<std::uint64_t> at;
  for (const Range& range : ranges) {
    if (range.begin == range.end) return {};
    at.push_back(range.begin);
  }
  while (true) {
    std::uint64_t element = 0;
    for (std::size_t d = 0; d < at.size(); ++d) element = element * tensor.shape[d] + at[d];
    for (std::uint64_t b = 0; b < size; ++b) offsets.push_back(base + element * size + b);
    std::size_t d = at.size();
    while (d > 0 && ++at[d - 1] == ranges[d - 1].end) {
      --d;
      at[d] = ranges[d].begin;
    }
    if (d == 0) return offsets;
  }
}

std::vector<std::uint64_t> offsets_of(const SlicedTensor& sliced) {
  std::vector<std::uint64_t> offsets(sliced.bytes, 0);
  for (const Rows& rows : sliced.rows) {
    for (std::uint64_t row = 0; row < rows.count; ++row) {
      for (std::uint64_t b = 0; b < rows.row_bytes; ++b) {
        offsets.at(rows.destination + row * rows.row_bytes + b) = rows.file_offset + row * rows.file_stride + b;
      }
    }
  }
  return offsets;
}

TEST(Slice, EveryBoxOfRandomShapesIsExactlyItsBytes) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::uint64_t> shape(random() % 5);
    for (auto& size : shape) size = 1 + random() % 5;
    const auto tensor = tensor_of(random() % 2 == 0 ? safetensors::Dtype::bf16 : safetensors::Dtype::u8, shape);
    std::vector<Range> ranges;
    for (const auto size : shape) {
      const std::uint64_t begin = random() % 3 == 0 ? 0 : random() % (size + 1);
      ranges.push_back({begin, random() % 3 == 0 ? size : begin + random() % (size - begin + 1)});
    }
    SliceRule rule{"t", ranges, std::nullopt};
    const SlicedTensor sliced = slice_tensor(tensor, 1000, rule).value();
    EXPECT_EQ(offsets_of(sliced), expected_offsets(tensor, ranges, 1000)) << "round " << round;
  }
}

TEST(Slice, LeadingDimensionIsOneContiguousPiece) {
  const auto tensor = tensor_of(safetensors::Dtype::f32, {8, 3, 5});
  const SlicedTensor sliced = slice_tensor(tensor, 64, {"t", {{2, 4}}, std::nullopt}).value();
  ASSERT_EQ(sliced.rows.size(), 1U);
  EXPECT_EQ(sliced.rows.front().count, 1U);
  EXPECT_EQ(sliced.rows.front().file_offset, 64U + 2 * 60);
  EXPECT_EQ(sliced.bytes, 120U);
}

TEST(Slice, ShardsOfAnUnevenDimensionAreThoseOfChunk) {
  const auto tensor = tensor_of(safetensors::Dtype::u8, {10, 2});
  std::vector<std::uint64_t> sizes;
  for (std::uint32_t rank = 0; rank < 8; ++rank) {
    sizes.push_back(slice_tensor(tensor, 0, {"t", {}, Shard{0, rank, 8}}).value().shape[0]);
  }
  EXPECT_EQ(sizes, (std::vector<std::uint64_t>{2, 2, 2, 2, 2, 0, 0, 0}));
}

TEST(Slice, ATensorWithoutTheDimensionIsWholeWhereTheShardSaysSo) {
  const auto scalar = tensor_of(safetensors::Dtype::f32, {});
  SliceRule rule{"*", {}, Shard{0, 1, 4}};
  EXPECT_FALSE(slice_tensor(scalar, 8, rule).ok());
  rule.shard->without_dimension = Shard::WithoutDimension::whole;
  const auto whole = slice_tensor(scalar, 8, rule);
  ASSERT_TRUE(whole.ok()) << whole.error().to_string();
  EXPECT_EQ(offsets_of(*whole), (std::vector<std::uint64_t>{8, 9, 10, 11}));
}

TEST(Slice, WhatCannotBeIsRefusedByName) {
  const auto tensor = tensor_of(safetensors::Dtype::f4, {4, 6});
  const auto refused = [&](const SliceRule& rule) {
    const auto result = slice_tensor(tensor, 0, rule);
    return !result.ok() && result.error().code() == ErrorCode::invalid_argument && result.error().tensor() == "t";
  };
  EXPECT_TRUE(refused({"t", {{0, 5}}, std::nullopt}));
  EXPECT_TRUE(refused({"t", {{3, 2}}, std::nullopt}));
  EXPECT_TRUE(refused({"t", {{0, 1}, {0, 1}, {0, 1}}, std::nullopt}));
  EXPECT_TRUE(refused({"t", {}, Shard{0, 2, 2}}));
  EXPECT_TRUE(refused({"t", {}, Shard{2, 0, 2}}));
  EXPECT_TRUE(refused({"t", {{0, 4}, {1, 3}}, std::nullopt}));  // within a byte
  EXPECT_TRUE(slice_tensor(tensor, 0, {"t", {{0, 4}, {2, 4}}, std::nullopt}).ok());
}

TEST(Slice, EmptyOnesHaveTheirShapeAndNoRows) {
  const auto tensor = tensor_of(safetensors::Dtype::f32, {4, 0, 3});
  const SlicedTensor sliced = slice_tensor(tensor, 0, {"t", {{1, 3}}, std::nullopt}).value();
  EXPECT_EQ(sliced.shape, (std::vector<std::uint64_t>{2, 0, 3}));
  EXPECT_EQ(sliced.bytes, 0U);
  EXPECT_TRUE(sliced.rows.empty());
}

}  // namespace
}  // namespace infercluster::load
