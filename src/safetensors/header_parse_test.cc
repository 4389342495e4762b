// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "safetensors/header.h"

namespace infercluster::safetensors {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Parsed {
  std::string kind;     // of the error; "" if there was none
  std::string message;  // all of it
  std::optional<Header> header;
};

Parsed parse(std::string_view json, std::uint64_t data_bytes, ParseOptions options = {}) {
  Result<Header> header =
      parse_header(std::as_bytes(std::span(json.data(), json.size())), 8 + json.size() + data_bytes, options);
  if (header.ok()) return {"", "", std::move(header).value()};
  EXPECT_TRUE(header.error().kind().empty() || header.error().code() == ErrorCode::corrupt);
  return {header.error().kind(), header.error().to_string(), std::nullopt};
}

const ParseOptions kReference{.compatibility = Compatibility::reference};

// One I32 tensor "a" of two elements, with `extra` after its fields.
std::string entry_with(const std::string& extra) {
  return R"({"a":{"dtype":"I32","shape":[2],"data_offsets":[0,8])" + extra + "}}";
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TEST(HeaderParse, ReadsTheTable) {
  const Parsed parsed = parse("{" + entry("b", "BF16", "[1,3]", "[4,10]") + R"(,"__metadata__":{"z":"1","a":"2"},)" +
                                  entry("a", "F32", "[]", "[0,4]") + "}",
                              6 + 4);
  ASSERT_TRUE(parsed.header) << parsed.message;
  const auto& tensors = parsed.header->tensors();
  ASSERT_EQ(tensors.size(), 2U);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].dtype, Dtype::f32);
  EXPECT_TRUE(tensors[0].shape.empty());
  EXPECT_EQ(tensors[1].name, "b");
  EXPECT_EQ(tensors[1].dtype, Dtype::bf16);
  EXPECT_EQ(tensors[1].shape, (std::vector<std::uint64_t>{1, 3}));
  EXPECT_EQ(tensors[1].begin, 4U);
  EXPECT_EQ(tensors[1].bytes(), 6U);
  EXPECT_EQ(parsed.header->find("b"), &tensors[1]);
  ASSERT_TRUE(parsed.header->metadata());
  EXPECT_EQ(*parsed.header->metadata(), (Metadata{{"z", "1"}, {"a", "2"}}));
  EXPECT_EQ(parsed.header->file_size(), parsed.header->data_begin() + 10);
}

TEST(HeaderParse, WhatTheReferenceAcceptsIsAccepted) {
  const std::string accepted[] = {
      entry_with(""),
      "  " + entry_with("") + " \t\r\n ",
      entry_with(" "),
      "{" + entry("", "I32", "[2]", "[0,8]") + "}",
      "{" + entry("a\\u0000b", "I32", "[2]", "[0,8]") + "}",
      "{" + entry("x/y", "I32", "[2]", "[0,8]") + "}",
      R"({"__metadata__":null,)" + entry("a", "I32", "[2]", "[0,8]") + "}",
      R"({"__metadata__":{},)" + entry("a", "I32", "[2]", "[0,8]") + "}",
      R"({"\u005f_metadata__":{"k":"v"},)" + entry("a", "I32", "[2]", "[0,8]") + "}",
      "{" + entry("a", "\\u0049\\u0033\\u0032", "[2]", "[0,8]") + "}",
      "{" + entry("a", "U8", "[1]", "[0,1]") + "," + entry("b", "U8", "[7]", "[1,8]") + "}",  // misaligned
      "{" + entry("a", "F4", "[16]", "[0,8]") + "}",
      // Unknown fields, whatever is in them.
      entry_with(R"(,"x":18446744073709551616)"),
      entry_with(R"(,"x":-9223372036854775809)"),
      entry_with(R"(,"x":-0)"),
      entry_with(R"(,"x":[1.5,-0,-0.0,1e5,-1e-400,true,null])"),
      entry_with(R"(,"x":{"a":1,"a":2})"),
      entry_with(R"(,"x":1,"x":2)"),
      entry_with(R"(,"x":"\u0000\ud83d\ude00\/")"),
      entry_with(",\"x\":\"\x7f\""),
      entry_with(",\"x\":" + std::string(125, '[') + "1" + std::string(125, ']')),
      entry_with(R"(,"x-0":"-0 18446744073709551616")"),
      entry_with(R"(,"x":"2024-01-05")"),
      entry_with(R"(,"x": -0)"),
      entry_with(R"(,"x":[1,-0])"),
      entry_with(",\"x\":" + std::string(125, '[') + std::string(125, ']')),
  };
  for (const std::string& json : accepted) {
    EXPECT_EQ(parse(json, 8).message, "") << json;
    EXPECT_EQ(parse(json, 8, kReference).message, "") << json;
  }
}

TEST(HeaderParse, EmptyTensorsAndTablesAreAccepted) {  // L08
  const std::string accepted[] = {
      "{}",
      "{ }",
      "   {}   ",
      R"({"__metadata__":{"format":"pt"}})",
      "{" + entry("a", "F32", "[0]", "[0,0]") + "}",
      "{" + entry("a", "F32", "[0,4]", "[0,0]") + "," + entry("b", "I8", "[2,0]", "[0,0]") + "}",
      "{" + entry("a", "F32", "[0,9223372036854775808,2]", "[0,0]") + "}",
      "{" + entry("a", "I32", "[0,18446744073709551615]", "[0,0]") + "}",
  };
  for (const std::string& json : accepted) EXPECT_EQ(parse(json, 0).message, "") << json;

  const Parsed parsed =
      parse("{" + entry("first", "U8", "[0]", "[0,0]") + "," + entry("full", "U8", "[4]", "[0,4]") + "," +
                entry("middle", "F64", "[2,0]", "[4,4]") + "," + entry("scalar", "U8", "[]", "[4,5]") + "," +
                entry("last", "I64", "[0,4]", "[5,5]") + "}",
            5);
  ASSERT_TRUE(parsed.header) << parsed.message;
  EXPECT_EQ(parsed.header->find("middle")->shape, (std::vector<std::uint64_t>{2, 0}));
  EXPECT_EQ(parsed.header->find("last")->shape, (std::vector<std::uint64_t>{0, 4}));
  EXPECT_EQ(parsed.header->find("last")->bytes(), 0U);
  EXPECT_EQ(parsed.header->tensors().size(), 5U);
}

TEST(HeaderParse, BrokenJsonIsRefused) {
  using namespace std::string_literals;
  const std::string refused[] = {
      "",
      " ",
      "[]",
      "null",
      "1",
      "\"a\"",
      "{",
      "}",
      "{}x",
      "{}{}",
      "{}\0"s,
      "{},",
      "{\"a\"}",
      "{\"a\":}",
      "{'a':1}",
      "\xEF\xBB\xBF{}",
      "\0\0"s,
      entry_with(",\"x\":1,"),
      entry_with(",,"),
      entry_with(R"(,"x":"\x")"),
      entry_with(",\"x\":\"\x01\""),
      entry_with(",\"x\":\"\n\""),
      entry_with(R"(,"x":"\ud800")"),
      entry_with(R"(,"x":"\udc00")"),
      entry_with(R"(,"x":"\ud800\u0041")"),
      entry_with(R"(,"x":"\ud800\ud800")"),
      entry_with(R"(,"x":"\ud800\n")"),
      entry_with(R"(,"x":"\\\ud800")"),
      entry_with(R"(,"x":"\u12")"),
      entry_with(R"(,"x":"\u12G4")"),
      entry_with(",\"x\":+1"),
      entry_with(",\"x\":01"),
      entry_with(",\"x\":-"),
      entry_with(",\"x\":1."),
      entry_with(",\"x\":.5"),
      entry_with(",\"x\":1e400"),
      entry_with(",\"x\":" + std::string(400, '9')),
      entry_with(",\"x\":NaN"),
      entry_with(",\"x\":-00"),
      entry_with(",\"x\":-01,\"y\":-0"),
      entry_with(",\"x\":0018446744073709551616"),
      entry_with(",\"x\":123456789012345678901234567890123e300"),
      entry_with(",\"x\":tru"),
      entry_with(",\"x\":\"-0"),
      entry_with(",\"x\":[1,]"),
      entry_with(",\"x\":[1 2]"),
      entry_with(",\"x\":{]"),
      entry_with(",\"x\":/**/1"),
      entry_with(",\"x\":" + std::string(126, '[') + std::string(126, ']')),
      entry_with(",\"x\":" + std::string(126, '[') + "1" + std::string(126, ']')),
      entry_with(",\"x\":" + std::string(100'000, '[') + std::string(100'000, ']')),
      "{\"a\":" + std::string(100'000, '['),
  };
  for (const std::string& json : refused) {
    EXPECT_EQ(parse(json, 8).kind, "InvalidHeaderDeserialization") << json.substr(0, 200);
    EXPECT_EQ(parse(json, 8, kReference).kind, "InvalidHeaderDeserialization") << json.substr(0, 200);
  }
}

TEST(HeaderParse, WhatIsNotUtf8IsAnInvalidHeader) {
  EXPECT_EQ(parse("\xFF", 0).kind, "InvalidHeader");
  EXPECT_EQ(parse("{\"\xC0\x80\":1}", 0).kind, "InvalidHeader");             // overlong
  EXPECT_EQ(parse("{\"\xED\xA0\x80\":1}", 0).kind, "InvalidHeader");         // a surrogate
  EXPECT_EQ(parse(entry_with(",\"\xE2\x82\":1"), 8).kind, "InvalidHeader");  // cut
}

TEST(HeaderParse, EntriesOfTheWrongShapeAreRefused) {
  const std::string good = entry("a", "I32", "[2]", "[0,8]");
  const std::string refused[] = {
      R"({"a":3})",
      R"({"a":null})",
      R"({"a":"I32"})",
      R"({"a":{}})",
      R"({"a":[]})",
      R"({"a":{"shape":[2],"data_offsets":[0,8]}})",
      R"({"a":{"dtype":"I32","data_offsets":[0,8]}})",
      R"({"a":{"dtype":"I32","shape":[2]}})",
      R"({"a":{"dtype":3,"shape":[2],"data_offsets":[0,8]}})",
      R"({"a":{"dtype":null,"shape":[2],"data_offsets":[0,8]}})",
      R"({"a":{"dtype":["I32"],"shape":[2],"data_offsets":[0,8]}})",
      "{" + entry("a", "i32", "[2]", "[0,8]") + "}",
      "{" + entry("a", "F128", "[2]", "[0,8]") + "}",
      "{" + entry("a", "I32", "2", "[0,8]") + "}",
      "{" + entry("a", "I32", "null", "[0,8]") + "}",
      "{" + entry("a", "I32", "{}", "[0,8]") + "}",
      "{" + entry("a", "I32", "[2.0]", "[0,8]") + "}",
      "{" + entry("a", "I32", "[2e0]", "[0,8]") + "}",
      "{" + entry("a", "I32", "[\"2\"]", "[0,8]") + "}",
      "{" + entry("a", "I32", "[-2]", "[0,8]") + "}",
      "{" + entry("a", "I32", "[null]", "[0,8]") + "}",
      "{" + entry("a", "I32", "[-0]", "[0,0]") + "}",
      "{" + entry("a", "I32", "[0]", "[-0,0]") + "}",
      "{" + entry("a", "I32", "[18446744073709551616]", "[0,8]") + "}",
      "{" + entry("a", "I32", "[2]", "[0,18446744073709551616]") + "}",
      "{" + entry("a", "I32", "[2]", "[0,8.0]") + "}",
      "{" + entry("a", "I32", "[2]", "[0]") + "}",
      "{" + entry("a", "I32", "[2]", "[0,8,8]") + "}",
      "{" + entry("a", "I32", "[2]", "{\"0\":8}") + "}",
      "{" + entry("a", "I32", "[2]", "[-1,8]") + "}",
      entry_with(R"(,"dtype":"I32")"),
      entry_with(R"(,"shape":[2])"),
      entry_with(R"(,"data_offsets":[0,8])"),
      entry_with(R"(,"d\u0074ype":"I32")"),
      R"({"__metadata__":{"k":1},)" + good + "}",
      R"({"__metadata__":{"k":null},)" + good + "}",
      R"({"__metadata__":[],)" + good + "}",
      R"({"__metadata__":"x",)" + good + "}",
      R"({"__metadata__":{},"__metadata__":{},)" + good + "}",
      R"({"__metadata__":null,"\u005f_metadata__":null,)" + good + "}",
      R"({"a":["I32",[2]]})",
      R"({"a":["I32",[2],[0,8],1]})",
      R"({"a":{"dtype":{"I32":{}},"shape":[2],"data_offsets":[0,8]}})",
      R"({"a":{"dtype":{},"shape":[2],"data_offsets":[0,8]}})",
      R"({"a":{"dtype":{"I32":null,"F32":null},"shape":[2],"data_offsets":[0,8]}})",
      R"({"a":3,)" + good + "}",
      "{" + good + R"(,"a":3})",
  };
  for (const std::string& json : refused) {
    EXPECT_EQ(parse(json, 8).kind, "InvalidHeaderDeserialization") << json;
    EXPECT_EQ(parse(json, 8, kReference).kind, "InvalidHeaderDeserialization") << json;
  }
}

TEST(HeaderParse, DuplicateNamesAreCalledThat) {  // L01
  const std::string first = entry("a", "I32", "[2]", "[0,8]");
  const std::string duplicates[] = {
      "{" + first + "," + entry("a", "I32", "[2]", "[8,16]") + "}",
      "{" + first + "," + entry("a", "I32", "[2]", "[0,8]") + "}",
      "{" + first + "," + entry("\\u0061", "I32", "[2]", "[8,16]") + "}",
      "{" + first + "," + entry("b", "I32", "[2]", "[8,16]") + "," + entry("a", "I32", "[2]", "[8,16]") + "}",
  };
  for (const std::string& json : duplicates) {
    const Parsed parsed = parse(json, 16);
    EXPECT_EQ(parsed.kind, "InvalidHeaderDeserialization") << json;
    EXPECT_THAT(parsed.message, HasSubstr("duplicate name \"a\"")) << json;
  }
  EXPECT_THAT(parse(R"({"__metadata__":{},"__metadata__":{}})", 0).message,
              HasSubstr("duplicate name \"__metadata__\""));
  EXPECT_THAT(parse(R"({"__metadata__":{"k":"1","k":"2"}})", 0).message, HasSubstr("duplicate metadata key \"k\""));
  EXPECT_THAT(parse(entry_with(R"(,"dtype":"I32")"), 8).message, HasSubstr("duplicate field \"dtype\""));

  const Parsed shared = parse("{" + first + "," + entry("b", "I32", "[2]", "[0,8]") + "}", 8);
  EXPECT_EQ(shared.kind, "InvalidOffset");
  EXPECT_THAT(shared.message, HasSubstr("overlap"));
}

TEST(HeaderParse, ReferenceCompatibilityAcceptsItsLaxSpots) {
  const std::string twice =
      "{" + entry("a", "F32", "[2]", "[0,8]") + "," + entry("\\u0061", "I32", "[2]", "[0,8]") + "}";
  const Parsed last_wins = parse(twice, 8, kReference);
  ASSERT_TRUE(last_wins.header) << last_wins.message;
  ASSERT_EQ(last_wins.header->tensors().size(), 1U);
  EXPECT_EQ(last_wins.header->tensors()[0].dtype, Dtype::i32);

  const Parsed metadata = parse(R"({"__metadata__":{"k":"1","j":"x","k":"2"}})", 0, kReference);
  ASSERT_TRUE(metadata.header) << metadata.message;
  EXPECT_EQ(*metadata.header->metadata(), (Metadata{{"j", "x"}, {"k", "2"}}));

  const std::string odd[] = {
      R"({"a":["I32",[2],[0,8]]})",
      R"({"a":[{"I32":null},[2],[0,8]]})",
      R"({"a":{"dtype":{"I32":null},"shape":[2],"data_offsets":[0,8]}})",
  };
  for (const std::string& json : odd) {
    EXPECT_EQ(parse(json, 8).kind, "InvalidHeaderDeserialization") << json;
    const Parsed parsed = parse(json, 8, kReference);
    ASSERT_TRUE(parsed.header) << json << parsed.message;
    EXPECT_EQ(parsed.header->find("a")->dtype, Dtype::i32);
  }
  // A replaced entry leaves its hole.
  EXPECT_EQ(
      parse("{" + entry("a", "U8", "[8]", "[0,8]") + "," + entry("a", "U8", "[8]", "[8,16]") + "}", 16, kReference)
          .kind,
      "InvalidOffset");
}

TEST(HeaderParse, RangesMustFollowEachOther) {
  const std::string a = entry("a", "U8", "[4]", "[0,4]");
  struct Row {
    std::string json;
    const char* tensor;
    const char* said;
  };
  const Row rows[] = {
      {"{" + a + "," + entry("b", "U8", "[4]", "[5,9]") + "}", "b", "gap"},
      {"{" + entry("b", "U8", "[4]", "[1,5]") + "}", "b", "gap"},
      {"{" + a + "," + entry("b", "U8", "[4]", "[3,7]") + "}", "b", "overlap"},
      {"{" + entry("b", "U8", "[4]", "[8,0]") + "}", "b", "gap"},
      {"{" + entry("b", "U8", "[8]", "[0,8]") + "," + entry("c", "U8", "[0]", "[4,4]") + "}", "c", "overlap"},
      {"{" + a + "," + entry("b", "U8", "[4]", "[4,3]") + "}", "b", "end before"},
  };
  for (const Row& row : rows) {
    const Parsed parsed = parse(row.json, 9);
    EXPECT_EQ(parsed.kind, "InvalidOffset") << row.json;
    EXPECT_THAT(parsed.message, HasSubstr(std::string("tensor \"") + row.tensor + "\"")) << row.json;
    EXPECT_THAT(parsed.message, HasSubstr(row.said)) << row.json;
  }
}

TEST(HeaderParse, SizesAreChecked) {
  EXPECT_EQ(parse("{" + entry("a", "I32", "[2]", "[0,7]") + "}", 7).kind, "TensorInvalidInfo");
  EXPECT_EQ(parse("{" + entry("a", "I32", "[2]", "[0,18446744073709551615]") + "}", 8).kind, "TensorInvalidInfo");
  EXPECT_EQ(parse("{" + entry("a", "I32", "[9223372036854775808,2,0]", "[0,0]") + "}", 0).kind, "ValidationOverflow");
  EXPECT_EQ(parse("{" + entry("a", "U8", "[18446744073709551615]", "[0,18446744073709551615]") + "}", 8).kind,
            "ValidationOverflow");
  EXPECT_EQ(parse("{" + entry("a", "F4", "[3]", "[0,2]") + "}", 2).kind, "MisalignedSlice");
  EXPECT_EQ(parse("{" + entry("a", "F6_E2M3", "[3]", "[0,3]") + "}", 3).kind, "MisalignedSlice");
}

TEST(HeaderParse, FileSizeIsCheckedLast) {  // L02
  const std::string json = entry_with("");
  const std::uint64_t whole = 8 + json.size() + 8;
  for (const std::uint64_t data : {std::uint64_t{0}, std::uint64_t{7}, std::uint64_t{9}}) {
    const Parsed parsed = parse(json, data);
    EXPECT_EQ(parsed.kind, "MetadataIncompleteBuffer");
    EXPECT_THAT(parsed.message, HasSubstr(std::to_string(whole)));
    EXPECT_THAT(parsed.message, HasSubstr(std::to_string(8 + json.size() + data)));
  }
  EXPECT_EQ(parse("{}", 1).kind, "MetadataIncompleteBuffer");
  const ParseOptions trailing{.allow_trailing_bytes = true};
  EXPECT_EQ(parse(json, 9, trailing).kind, "");
  EXPECT_EQ(parse(json, 7, trailing).kind, "MetadataIncompleteBuffer");
  EXPECT_EQ(parse(json, 9, trailing).header->file_size(), whole + 1);
  // An offset error comes first.
  EXPECT_EQ(parse("{" + entry("a", "U8", "[4]", "[1,5]") + "}", 99).kind, "InvalidOffset");
}

TEST(HeaderParse, HostileNamesDoNotReachTheMessageRaw) {
  const std::string name = "\\u001b[2J" + std::string(10'000, 'x');
  const Parsed parsed =
      parse("{" + entry(name, "U8", "[1]", "[0,1]") + "," + entry(name, "U8", "[1]", "[1,2]") + "}", 2);
  EXPECT_THAT(parsed.message, Not(HasSubstr("\x1b")));
  EXPECT_LT(parsed.message.size(), 1000U);
}

}  // namespace
}  // namespace infercluster::safetensors
