// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/compare.h"

#include <gtest/gtest.h>

#include "checkpoint/saved_test_helpers.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

using test::Dtype;
using test::mesh_pieces;
using test::open_saved;
using test::whole;
using Kind = TensorDifference::Kind;

TEST(Compare, BytesCountAndNotTheBoxesTheyWereSavedIn) {
  const testing::TempDir temp;
  const std::string root = temp.path().string();
  test::save(root, mesh_pieces, {.step = 1, .world = 4});
  test::save(root, mesh_pieces, {.step = 2, .world = 3});
  for (const std::uint64_t window : {2048U, 1U << 20}) {
    CompareOptions options;
    options.window_bytes = window;
    const auto comparison = compare(*open_saved(root, 1), *open_saved(root, 2), options);
    ASSERT_TRUE(comparison.ok()) << comparison.error().to_string();
    EXPECT_TRUE(comparison->same());
    EXPECT_EQ(comparison->equal, 6U);
    EXPECT_LE(comparison->memory_bytes, window);
    EXPECT_EQ(comparison->bytes, 10U * 7 * 4 + 300 * 1000 + 25 * 8 + 8 + 90 * 70 * 3 * 2);
  }
}

// Saves two elements of a tensor that differ from those of `seed`.
void save_changed(const std::string& root) {
  test::Memory memory;
  memory.add(whole("w", Dtype::f32, {100, 300}), 7);
  memory.add(whole("f4", Dtype::f4, {4, 6}), 7, false);
  State state = memory.state();
  std::vector<std::byte> changed(state.pieces[0].data, state.pieces[0].data + 100 * 300 * 4);
  changed[(40 * 300 + 20) * 4 + 3] ^= std::byte{0x80};
  changed[(99 * 300 + 299) * 4] ^= std::byte{1};
  state.pieces[0].data = changed.data();
  std::vector<std::byte> halves(12, std::byte{0xEE});
  halves[7] = std::byte{0xEF};
  state.pieces[1].data = halves.data();
  auto checkpointer = Checkpointer::open(root, {});
  ASSERT_TRUE((*checkpointer)->save(2, state, {.wait = Wait::until_durable}).ok());
}

TEST(Compare, EachElementThatDiffersIsCountedAndTheFirstIsNamed) {
  const testing::TempDir temp;
  const std::string root = temp.path().string();
  test::Memory memory;
  memory.add(whole("w", Dtype::f32, {100, 300}), 7);
  memory.add(whole("f4", Dtype::f4, {4, 6}), 7, false);
  {
    auto checkpointer = Checkpointer::open(root, {});
    ASSERT_TRUE((*checkpointer)->save(1, memory.state(), {.wait = Wait::until_durable}).ok());
  }
  save_changed(root);
  CompareOptions options;
  options.window_bytes = 10'000;
  const auto comparison = compare(*open_saved(root, 1), *open_saved(root, 2), options);
  ASSERT_TRUE(comparison.ok()) << comparison.error().to_string();
  EXPECT_FALSE(comparison->same());
  EXPECT_EQ(comparison->equal, 0U);
  ASSERT_EQ(comparison->differences.size(), 2U);
  const TensorDifference& halves = comparison->differences[0];
  EXPECT_EQ(halves.tensor, "f4");
  EXPECT_EQ(halves.elements, 1U);
  EXPECT_EQ(halves.first, (std::vector<std::uint64_t>{2, 2}));
  const TensorDifference& w = comparison->differences[1];
  EXPECT_EQ(w.kind, Kind::values);
  EXPECT_EQ(w.elements, 2U);
  EXPECT_EQ(w.first, (std::vector<std::uint64_t>{40, 20}));
}

TEST(Compare, NamesTypesAndMetadataThatDifferAreToldApart) {
  const testing::TempDir temp;
  const std::string root = temp.path().string();
  test::save(root,
             [](std::uint64_t, std::uint64_t) {
               return Pieces{whole("a", Dtype::f32, {2, 3}), whole("gone", Dtype::u8, {1}),
                             whole("shape", Dtype::f32, {2, 3}), whole("type", Dtype::f32, {2, 3})};
             },
             {.step = 1});
  test::save(root,
             [](std::uint64_t, std::uint64_t) {
               return Pieces{whole("a", Dtype::f32, {2, 3}), whole("new", Dtype::u8, {1}),
                             whole("shape", Dtype::f32, {3, 2}), whole("type", Dtype::i32, {2, 3})};
             },
             {.step = 2, .text = "other"});
  const auto comparison = compare(*open_saved(root, 1), *open_saved(root, 2), {});
  ASSERT_TRUE(comparison.ok()) << comparison.error().to_string();
  EXPECT_EQ(comparison->equal, 1U);
  EXPECT_EQ(comparison->metadata, std::vector<std::string>{"note"});
  std::vector<std::pair<std::string, Kind>> found;
  for (const TensorDifference& difference : comparison->differences)
    found.emplace_back(difference.tensor, difference.kind);
  EXPECT_EQ(found,
            (std::vector<std::pair<std::string, Kind>>{
                {"gone", Kind::only_in_a}, {"new", Kind::only_in_b}, {"shape", Kind::type}, {"type", Kind::type}}));
}

TEST(Compare, DamageIsAnErrorAndNoDifference) {
  const testing::TempDir temp;
  const std::string root = temp.path().string();
  test::save(root, mesh_pieces, {.step = 1});
  test::save(root, mesh_pieces, {.step = 2});
  test::flip(root + "/step-2/node-0.0.1.safetensors", -1);
  const auto comparison = compare(*open_saved(root, 1), *open_saved(root, 2), {});
  ASSERT_FALSE(comparison.ok());
  EXPECT_EQ(comparison.error().code(), ErrorCode::corrupt);
}

TEST(Compare, ItCanBeCancelled) {
  const testing::TempDir temp;
  const std::string root = temp.path().string();
  test::save(root, mesh_pieces, {.step = 1});
  CompareOptions options;
  options.window_bytes = 20'000;
  int asked = 0;
  options.progress = [&](std::uint64_t, std::uint64_t) { return ++asked < 3; };
  const auto one = open_saved(root, 1);
  const auto comparison = compare(*one, *one, options);
  ASSERT_FALSE(comparison.ok());
  EXPECT_EQ(comparison.error().code(), ErrorCode::cancelled);
}

}  // namespace
}  // namespace infercluster::checkpoint
