// SPDX-License-Identifier: Apache-2.0
#include "manifest/index.h"

#include <gtest/gtest.h>

#include <functional>

namespace infercluster::manifest {
namespace {

using safetensors::Dtype;

Index example() {
  Index index;
  index.step = 7;
  index.epoch = 1;
  index.save_id = "0123456789abcdef";
  index.node = 3;
  index.segments = {{"node-3.0.1.safetensors", 65'537, {1, 0xFFFFFFFF}}};
  index.chunks = {
      {"w", Dtype::f32, {10, 4}, {{5, 0}, {5, 4}}, 0, 64, 80},
      {"scalar", Dtype::i64, {}, {}, 0, 144, 8},
      {"empty", Dtype::bf16, {0, 3}, {{0, 0}, {0, 3}}, 0, 65'537, 0},
      {"größe", Dtype::u8, {3}, {{0}, {3}}, 0, 65'534, 3},
  };
  index.chunks[0].generation = 0;
  index.chunks[1].generation = UINT64_MAX;
  index.metadata = {{"torch", "2.13"}, {"a", "\"quoted\"\n"}};
  return index;
}

TEST(Index, ComesBackAsItWasBuilt) {
  const auto text = build_index(example());
  ASSERT_TRUE(text.ok()) << text.error().to_string();
  const auto parsed = parse_index(*text);
  ASSERT_TRUE(parsed.ok()) << parsed.error().to_string();
  EXPECT_EQ(*parsed, example());
}

TEST(Index, WhatContradictsItselfIsRefused) {
  const std::function<void(Index&)> damages[] = {
      [](Index& i) { i.save_id = "x"; },
      [](Index& i) { i.segments[0].name = "../up"; },
      [](Index& i) { i.segments.push_back(i.segments[0]); },
      [](Index& i) { i.segments[0].block_crcs.pop_back(); },
      [](Index& i) { i.segments[0].bytes = UINT64_MAX; },
      [](Index& i) { i.chunks[0].segment = 1; },
      [](Index& i) { i.chunks[0].begin = 65'537 - 79; },
      [](Index& i) { i.chunks[0].begin = UINT64_MAX; },
      [](Index& i) { i.chunks[0].box.offsets[0] = 6; },
      [](Index& i) { i.chunks[0].box.offsets[0] = UINT64_MAX; },
      [](Index& i) { i.chunks[0].box.lengths.pop_back(); },
      [](Index& i) {
        i.chunks[0].shape = {UINT64_MAX, UINT64_MAX};
      },
      [](Index& i) { i.metadata[1].first = "torch"; },
  };
  for (std::size_t i = 0; i < std::size(damages); ++i) {
    Index index = example();
    damages[i](index);
    EXPECT_FALSE(build_index(index).ok()) << i;
  }
  ASSERT_TRUE(build_index(example()).ok());
}

TEST(Index, TextThatIsNotUtf8IsRefused) {
  Index index = example();
  index.metadata[0].second = "\xFF";
  const auto text = build_index(index);
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code(), ErrorCode::invalid_argument);
}

TEST(Index, WhitespaceDoesNotCount) {
  const std::string text = *build_index(example());
  for (const std::string& odd : {text.substr(0, text.size() - 1), text + " ", " " + text, "{ " + text.substr(1),
                                 text.substr(0, text.size() - 2) + " }\n"}) {
    const auto parsed = parse_index(odd);
    ASSERT_TRUE(parsed.ok()) << odd;
    EXPECT_EQ(*parsed, example());
  }
  EXPECT_FALSE(parse_index(text + "x").ok());
}

TEST(Index, AFlippedBitNeverGivesAnotherIndex) {
  const std::string text = *build_index(example());
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string flipped = text;
    flipped[i] = static_cast<char>(flipped[i] ^ 1);
    const auto parsed = parse_index(flipped);
    if (parsed.ok()) {
      EXPECT_EQ(*parsed, example()) << i;
    }
  }
}

}  // namespace
}  // namespace infercluster::manifest
