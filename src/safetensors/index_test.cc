// SPDX-License-Identifier: Apache-2.0
#include "safetensors/index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace infercluster::safetensors {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string index_of(const std::string& shard) {
  return R"({"weight_map":{"a":")" + shard + R"("}})";
}

TEST(Index, ReadsMapAndTotalSize) {
  const auto index =
      parse_index(R"({"metadata":{"total_size":12,"x":[]},"weight_map":{"b":"2.safetensors","a":"1.safetensors",)"
                  R"("c":"2.safetensors"},"more":1})");
  ASSERT_TRUE(index.ok()) << index.error().to_string();
  EXPECT_EQ(index->total_size, 12U);
  ASSERT_EQ(index->weight_map.size(), 3U);
  EXPECT_EQ(index->weight_map[0], std::pair(std::string("b"), std::string("2.safetensors")));
  EXPECT_THAT(index->shards(), ElementsAre("1.safetensors", "2.safetensors"));
}

TEST(Index, TotalSizeIsAClaimThatMayBeOddOrMissing) {
  const auto total = [](const std::string& metadata) {
    const auto index = parse_index("{" + metadata + R"("weight_map":{"a":"f"}})");
    EXPECT_TRUE(index.ok()) << metadata;
    return index.ok() ? index->total_size : std::nullopt;
  };
  EXPECT_EQ(total(""), std::nullopt);
  EXPECT_EQ(total(R"("metadata":{},)"), std::nullopt);
  EXPECT_EQ(total(R"("metadata":null,)"), std::nullopt);
  EXPECT_EQ(total(R"("metadata":{"total_size":1.5e3},)"), 1500U);
  EXPECT_EQ(total(R"("metadata":{"total_size":-1},)"), std::nullopt);
  EXPECT_EQ(total(R"("metadata":{"total_size":"7"},)"), std::nullopt);
  EXPECT_EQ(total(R"("metadata":{"total_size":1e300},)"), std::nullopt);
  EXPECT_EQ(total(R"("metadata":{"total_size":18446744073709551615},)"), UINT64_MAX);
}

TEST(Index, BrokenOnesAreRefused) {  // L05
  const std::string refused[] = {
      "",
      "not json",
      "[]",
      "{",
      "{}",
      R"({"weight_map":{}})",
      R"({"weight_map":[]})",
      R"({"weight_map":null})",
      R"({"weight_map":{"a":1}})",
      R"({"weight_map":{"a":null}})",
      R"({"weight_map":{"a":"f"}}x)",
      "\xEF\xBB\xBF" + index_of("f"),
      R"({"weight_map":{"a":"f","a":"g"}})",
      R"({"weight_map":{"a":"f","\u0061":"f"}})",
      R"({"weight_map":{"a":"f"},"weight_map":{"a":"f"}})",
      "{\"weight_map\":{\"\xFF\":\"f\"}}",
      R"({"weight_map":{"\ud800":"f"}})",
      "version https://git-lfs.github.com/spec/v1\n",
  };
  for (const std::string& json : refused) {
    const auto index = parse_index(json);
    ASSERT_FALSE(index.ok()) << json;
    EXPECT_EQ(index.error().code(), ErrorCode::corrupt) << json;
  }
  EXPECT_THAT(parse_index(R"({"weight_map":{"a":"f","a":"g"}})").error().message(), HasSubstr("duplicate name \"a\""));
  EXPECT_THAT(parse_index(R"({"weight_map":{}})").error().message(), HasSubstr("empty"));
}

TEST(Index, OnlyPlainFileNamesAreShards) {  // L07
  for (const char* shard : {"", ".", "..", "../x/secret.safetensors", "/etc/passwd", "a/b.safetensors",
                            "a\\\\b.safetensors", "f\\u0000.safetensors", "./f", "x/", "\\u002e\\u002e", "..\\/f"}) {
    const auto index = parse_index(index_of(shard));
    ASSERT_FALSE(index.ok()) << shard;
    EXPECT_EQ(index.error().code(), ErrorCode::corrupt) << shard;
  }
  EXPECT_THAT(parse_index(index_of("../x/secret.safetensors")).error().message(),
              HasSubstr("\"../x/secret.safetensors\""));
  EXPECT_FALSE(parse_index(index_of(std::string(256, 'x'))).ok());
  for (const char* shard : {"f", "...", "..f", "model-00001-of-00002.safetensors", "mod\xC3\xA9l.safetensors", "a b"}) {
    EXPECT_TRUE(parse_index(index_of(shard)).ok()) << shard;
  }
}

TEST(Index, WhatIsBuiltParsesToTheSame) {
  const Index index{.weight_map = {{"b\"", "2.safetensors"}, {"a\n", "1.safetensors"}}, .total_size = 99};
  const auto parsed = parse_index(build_index(index));
  ASSERT_TRUE(parsed.ok()) << parsed.error().to_string();
  EXPECT_EQ(parsed->weight_map, index.weight_map);
  EXPECT_EQ(parsed->total_size, 99U);
  EXPECT_EQ(build_index({.weight_map = {{"a", "f"}}, .total_size = {}}),
            "{\n  \"weight_map\": {\n    \"a\": \"f\"\n  }\n}\n");
}

}  // namespace
}  // namespace infercluster::safetensors
