// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/tensor_windows.h"

#include <gtest/gtest.h>

#include "checkpoint/plan.h"
#include "safetensors/header.h"

namespace infercluster::checkpoint {
namespace {

using safetensors::Dtype;

// Whether the elements of the box are neighbours in the tensor, from its first one on: all lengths before one
// dimension are 1, and all behind it are whole.
bool is_contiguous(const Box& box, const std::vector<std::uint64_t>& shape) {
  std::size_t d = 0;
  while (d < shape.size() && box.lengths[d] == 1) ++d;
  for (++d; d < shape.size(); ++d) {
    if (box.offsets[d] != 0 || box.lengths[d] != shape[d]) return false;
  }
  return true;
}

std::uint64_t first_element(const Box& box, const std::vector<std::uint64_t>& shape) {
  std::uint64_t element = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) element = element * shape[d] + box.offsets[d];
  return element;
}

// All bytes of all tensors, in order, in boxes of neighbours and windows within bounds; how many windows.
std::size_t check(const std::vector<WindowedTensor>& tensors, std::uint64_t window_bytes) {
  TensorWindows windows(tensors, window_bytes);
  std::vector<std::uint64_t> done(tensors.size());
  std::size_t tensor = 0;
  std::size_t count = 0;
  while (true) {
    const auto window = windows.next();
    EXPECT_TRUE(window.ok()) << (window.ok() ? "" : window.error().to_string());
    if (!window.ok() || !*window) break;
    ++count;
    EXPECT_LE((*window)->bytes, window_bytes);
    std::uint64_t sum = 0;
    for (const TensorPart& part : (*window)->parts) {
      EXPECT_GE(part.tensor, tensor);
      tensor = part.tensor;
      const WindowedTensor& source = tensors[tensor];
      EXPECT_EQ(part.begin, done[tensor]);
      EXPECT_EQ(first_element(part.box, source.shape) * safetensors::bits_of(source.dtype), part.begin * 8);
      EXPECT_TRUE(is_contiguous(part.box, source.shape)) << to_string(part.box);
      const auto bytes = check_piece({source.name, source.dtype, source.shape, part.box});
      EXPECT_TRUE(bytes.ok());
      EXPECT_EQ(*bytes, part.bytes);
      done[tensor] += part.bytes;
      sum += part.bytes;
    }
    EXPECT_EQ(sum, (*window)->bytes);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i)
    EXPECT_EQ(done[i], *safetensors::tensor_bytes(tensors[i].dtype, tensors[i].shape)) << tensors[i].name;
  return count;
}

TEST(TensorWindows, HoldAllBytesInOrder) {
  const std::vector<WindowedTensor> tensors{
      {"scalar", Dtype::f64, {}},          {"none", Dtype::f32, {0, 3}},       {"large", Dtype::f32, {7, 11, 13}},
      {"row", Dtype::u8, {1, 1, 5000, 1}}, {"small", Dtype::bf16, {2, 3}},     {"tall", Dtype::f16, {999, 1}},
      {"f4", Dtype::f4, {30, 6, 5}},       {"f6", Dtype::f6_e2m3, {4, 50, 4}}, {"cube", Dtype::i64, {9, 9, 9}},
  };
  for (const std::uint64_t window : {8U, 12U, 60U, 64U, 100U, 1000U, 4004U, 5000U, 1U << 20}) check(tensors, window);
  EXPECT_EQ(check(tensors, 1 << 20), 1U);
}

TEST(TensorWindows, OnlyWhatIsLargerThanAWindowIsCut) {
  const std::vector<WindowedTensor> tensors{{"a", Dtype::u8, {60}}, {"b", Dtype::u8, {60}}, {"c", Dtype::u8, {250}}};
  TensorWindows windows(tensors, 100);
  std::vector<std::uint64_t> sizes;
  while (true) {
    const auto window = windows.next();
    ASSERT_TRUE(window.ok());
    if (!*window) break;
    sizes.push_back((*window)->bytes);
  }
  EXPECT_EQ(sizes, (std::vector<std::uint64_t>{60, 60, 100, 100, 50}));
  EXPECT_EQ(check({}, 100), 0U);
}

TEST(TensorWindows, WhatCannotBeCutIsRefusedByName) {
  const std::vector<WindowedTensor> odd_rows{{"odd", Dtype::f4, {2, 1001}}};
  EXPECT_EQ(check(odd_rows, 1001), 1U);
  TensorWindows windows(odd_rows, 600);
  ASSERT_TRUE(windows.next().ok());  // of the first row all but its last element, which shares a byte
  const auto refused = windows.next();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().tensor(), "odd");
  EXPECT_FALSE(refused.error().hint().empty());
  const std::vector<WindowedTensor> wide{{"wide", Dtype::f64, {3}}};
  TensorWindows narrow(wide, 7);
  EXPECT_FALSE(narrow.next().ok());
}

}  // namespace
}  // namespace infercluster::checkpoint
