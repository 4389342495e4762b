// SPDX-License-Identifier: Apache-2.0
#include "load/scatter.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

namespace infercluster::load {
namespace {

TEST(Scatter, WindowsOfAnyCutTogetherBringEveryRow) {
  std::mt19937 random(17);
  std::vector<std::byte> file(5000);
  for (auto& byte : file) byte = static_cast<std::byte>(random());
  auto copier = memory::make_host_copier();
  for (int round = 0; round < 500; ++round) {
    Rows rows;
    rows.row_bytes = 1 + random() % 60;
    rows.file_stride = rows.row_bytes + random() % 60;
    rows.count = 1 + random() % 30;
    rows.file_offset = random() % 500;
    rows.destination = random() % 10;
    std::vector<std::byte> tensor(rows.destination + rows.bytes());
    const memory::Span span = memory::host_span(tensor.data(), tensor.size());
    std::uint64_t copied = 0;
    for (std::uint64_t at = 0; at < file.size();) {
      const std::uint64_t length = std::min<std::uint64_t>(1 + random() % 300, file.size() - at);
      copied += scatter_rows(rows, at, memory::host_span(file.data() + at, length), span, *copier).value();
      at += length;
    }
    EXPECT_EQ(copied, rows.bytes());
    for (std::uint64_t row = 0; row < rows.count; ++row) {
      for (std::uint64_t b = 0; b < rows.row_bytes; ++b) {
        ASSERT_EQ(tensor[rows.destination + row * rows.row_bytes + b],
                  file[rows.file_offset + row * rows.file_stride + b]);
      }
    }
  }
}

TEST(Scatter, AWindowWithoutRowsCopiesNothing) {
  const std::vector<std::byte> bytes(100);
  const memory::Span window = memory::host_span(bytes.data(), bytes.size());
  std::vector<std::byte> tensor(20);
  const memory::Span span = memory::host_span(tensor.data(), tensor.size());
  auto copier = memory::make_host_copier();
  const Rows rows{1000, 10, 2, 500, 0};
  EXPECT_EQ(scatter_rows(rows, 0, window, span, *copier).value(), 0U);
  EXPECT_EQ(scatter_rows(rows, 1100, window, span, *copier).value(), 0U);  // in the gap
  EXPECT_EQ(scatter_rows(rows, 1510, window, span, *copier).value(), 0U);
}

}  // namespace
}  // namespace infercluster::load
