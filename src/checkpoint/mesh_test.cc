// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace infercluster::checkpoint {
namespace {

using Numbers = std::vector<std::uint64_t>;

Mesh through_text(const Mesh& mesh) {
  exchange::Writer out;
  mesh.encode(out);
  const std::string bytes = out.take();
  exchange::Reader in(bytes);
  auto back = Mesh::decode(in);
  EXPECT_TRUE(back.ok() && in.complete());
  return *back;
}

void expect_ranks(const Mesh& mesh, const Numbers& ranks) {
  ASSERT_EQ(mesh.size(), ranks.size());
  for (std::uint64_t i = 0; i < ranks.size(); ++i) EXPECT_EQ(mesh.rank_at(i), ranks[i]);
  for (std::uint64_t rank = 0; rank < 200; ++rank) {
    const auto place = std::find(ranks.begin(), ranks.end(), rank);
    const auto position = mesh.position_of(rank);
    ASSERT_EQ(position.has_value(), place != ranks.end()) << rank;
    if (position) {
      EXPECT_EQ(*position, static_cast<std::uint64_t>(place - ranks.begin()));
    }
  }
  EXPECT_EQ(through_text(mesh), mesh);
}

TEST(Mesh, AListAndItsStridesAreOneMesh) {
  // Stage 1 of 2, 3 x 4 ranks, the first dimension the outermost or the innermost.
  Numbers rows(12);
  std::iota(rows.begin(), rows.end(), 12);
  const auto listed = Mesh::of({3, 4}, rows);
  ASSERT_TRUE(listed.ok());
  EXPECT_EQ(*listed, *Mesh::regular({3, 4}, 12, {4, 1}));
  expect_ranks(*listed, rows);
  const Numbers columns{0, 6, 12, 18, 2, 8, 14, 20, 4, 10, 16, 22};
  expect_ranks(*Mesh::of({3, 4}, columns), columns);
  EXPECT_EQ(*Mesh::of({3, 4}, columns), *Mesh::regular({3, 4}, 0, {2, 6}));
  EXPECT_EQ(*Mesh::of({1, 2, 1}, {5, 9}), *Mesh::regular({1, 2, 1}, 5, {77, 4, 0}));
  EXPECT_NE(*listed, *Mesh::regular({4, 3}, 12, {3, 1}));
}

TEST(Mesh, RanksInAnyOrderComeBack) {
  std::mt19937 random(20251202);
  for (int run = 0; run < 200; ++run) {
    Numbers all(100);
    std::iota(all.begin(), all.end(), 0);
    if (run % 2 == 0) std::shuffle(all.begin(), all.end(), random);
    const Numbers shapes[] = {{}, {1}, {7}, {3, 4}, {2, 1, 5}, {2, 2, 2, 2}};
    const Numbers& shape = shapes[random() % std::size(shapes)];
    std::uint64_t size = 1;
    for (const std::uint64_t length : shape) size *= length;
    const std::uint64_t step = 1 + random() % 4;
    Numbers ranks;
    for (std::uint64_t i = 0; i < size; ++i) ranks.push_back(all[i * step]);
    const auto mesh = Mesh::of(shape, ranks);
    ASSERT_TRUE(mesh.ok());
    expect_ranks(*mesh, ranks);
  }
  // Regular, but a rank could be taken apart in two ways: kept as a list.
  expect_ranks(*Mesh::of({2, 3}, {0, 2, 4, 3, 5, 7}), {0, 2, 4, 3, 5, 7});
  EXPECT_EQ(*Mesh::regular({2, 3}, 0, {3, 2}), *Mesh::of({2, 3}, {0, 2, 4, 3, 5, 7}));
}

TEST(Mesh, ARegularOneIsSmallWhateverItsSize) {
  exchange::Writer out;
  Mesh::regular({128, 8}, 1024, {8, 1})->encode(out);
  EXPECT_LE(out.take().size(), 64U);
}

TEST(Mesh, WhatIsNoneIsRefused) {
  EXPECT_FALSE(Mesh::of({2}, {1}).ok());
  EXPECT_FALSE(Mesh::of({0}, {}).ok());
  EXPECT_FALSE(Mesh::of({2}, {1, 1}).ok());
  EXPECT_FALSE(Mesh::of({2}, {1, 65536}).ok());
  EXPECT_FALSE(Mesh::of({UINT64_MAX, UINT64_MAX}, {1}).ok());
  EXPECT_FALSE(Mesh::of(Numbers(17, 1), {1}).ok());
  EXPECT_FALSE(Mesh::regular({2, 2}, 0, {1, 1}).ok());
  EXPECT_FALSE(Mesh::regular({2, 2}, 0, {1}).ok());
  EXPECT_FALSE(Mesh::regular({2}, 65535, {1}).ok());
  EXPECT_FALSE(Mesh::regular({3}, 0, {UINT64_MAX / 2}).ok());
  exchange::Writer out;
  Mesh::of({2, 3}, {0, 2, 4, 3, 5, 7})->encode(out);
  const std::string bytes = out.take();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    exchange::Reader in(std::string_view(bytes).substr(0, size));
    EXPECT_FALSE(Mesh::decode(in).ok()) << size;
  }
}

}  // namespace
}  // namespace infercluster::checkpoint
