// SPDX-License-Identifier: Apache-2.0
#include "manifest/commit.h"

#include <gtest/gtest.h>

namespace infercluster::manifest {
namespace {

Commit example() {
  return {.step = 100,
          .epoch = 2,
          .save_id = "0123456789abcdef",
          .world = 4,
          .plan_hash = "00112233445566778899aabbccddeeff",
          .indexes = {{"node-0.2.index.json", 1234, 0xDEADBEEF}, {"node-1.2.index.json", 99, 7}}};
}

TEST(Commit, ComesBackAsItWasBuilt) {
  const auto text = build_commit(example());
  ASSERT_TRUE(text.ok()) << text.error().to_string();
  const auto parsed = parse_commit(*text);
  ASSERT_TRUE(parsed.ok()) << parsed.error().to_string();
  EXPECT_EQ(*parsed, example());
}

TEST(Commit, EveryCutAndEveryFlippedBitIsRefusedOrChangesNothing) {
  const std::string text = *build_commit(example());
  for (std::size_t length = 0; length + 1 < text.size(); ++length) {
    EXPECT_FALSE(parse_commit(text.substr(0, length)).ok()) << length;
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = text;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      const auto parsed = parse_commit(flipped);
      if (parsed.ok()) {
        EXPECT_EQ(*parsed, example()) << "byte " << i << " bit " << bit;
      }
    }
  }
}

TEST(Commit, SpacesBetweenItsPartsDoNotCount) {
  std::string text = *build_commit(example());
  const std::size_t end = text.rfind('}');
  text.insert(end, " ");
  text.insert(1, "\n  ");
  const auto parsed = parse_commit(text);
  ASSERT_TRUE(parsed.ok()) << parsed.error().to_string();
  EXPECT_EQ(*parsed, example());
  text.replace(text.find("\"step\""), 6, "\"stop\"");
  EXPECT_FALSE(parse_commit(text).ok());
}

TEST(Commit, ANewerVersionIsRefusedByItsNumber) {
  std::string text = *build_commit(example());
  text.replace(text.find("\"version\":1"), 11, "\"version\":9");
  const auto parsed = parse_commit(text);
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.error().code(), ErrorCode::unsupported);
  EXPECT_NE(parsed.error().message().find("version 9"), std::string::npos) << parsed.error().message();
}

TEST(Commit, NamesThatLeadElsewhereAreRefused) {
  for (const char* name : {"", ".", "..", "../x", "/etc/passwd", "a/b"}) {
    Commit commit = example();
    commit.indexes[0].name = name;
    EXPECT_FALSE(build_commit(commit).ok()) << name;
  }
  Commit twice = example();
  twice.indexes[1].name = twice.indexes[0].name;
  EXPECT_FALSE(build_commit(twice).ok());
}

TEST(Commit, DeepNestingIsRefused) {
  EXPECT_FALSE(parse_commit(std::string(1'000'000, '[')).ok());
}

TEST(Commit, StaysUnderFourMebibytesAtSixteenThousandRanks) {
  Commit commit = example();
  commit.world = 16'384;
  commit.indexes.clear();
  for (int rank = 0; rank < 16'384; ++rank) {
    commit.indexes.push_back({"node-" + std::to_string(rank) + ".12345.index.json", 123'456'789, 0xFFFFFFFF});
  }
  const auto text = build_commit(commit);
  ASSERT_TRUE(text.ok());
  EXPECT_LT(text->size(), std::size_t{4} << 20);
  EXPECT_TRUE(parse_commit(*text).ok());
}

}  // namespace
}  // namespace infercluster::manifest
