// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "safetensors/header.h"

namespace infercluster::safetensors {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Tensor tensor(std::string name, Dtype dtype, std::vector<std::uint64_t> shape) {
  return {.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
}

// The JSON of a header, its prefix checked and taken off.
std::string json_of(const Result<std::string>& header) {
  EXPECT_TRUE(header.ok()) << (header.ok() ? "" : header.error().to_string());
  if (!header.ok() || header->size() < 8) return "";
  const auto length = parse_header_length(std::as_bytes(std::span(header->data(), 8)), header->size());
  EXPECT_EQ(length.value(), header->size() - 8);
  EXPECT_EQ(header->size() % 8, 0U);
  return header->substr(8);
}

TEST(HeaderBuild, WritesCompactJsonPaddedWithSpaces) {
  std::vector<Tensor> tensors{tensor("a", Dtype::i32, {2})};
  EXPECT_EQ(json_of(build_header(tensors, std::nullopt)),
            R"({"a":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}}  )");
  std::vector<Tensor> none;
  EXPECT_EQ(json_of(build_header(none, std::nullopt)), "{}      ");
  EXPECT_EQ(json_of(build_header(none, Metadata{})), "{\"__metadata__\":{}}     ");
}

TEST(HeaderBuild, SortsByDtypeThenNameBytesAndSetsRanges) {
  std::vector<Tensor> tensors{tensor("z", Dtype::boolean, {3}), tensor("b", Dtype::f32, {1, 2}),
                              tensor("a", Dtype::f32, {}),      tensor("\xC3\xA9", Dtype::u64, {0}),
                              tensor("B", Dtype::u64, {1}),     tensor("f", Dtype::f4, {2})};
  ASSERT_TRUE(build_header(tensors, std::nullopt));
  std::vector<std::string> names;
  std::vector<std::uint64_t> begins;
  for (const Tensor& t : tensors) {
    names.push_back(t.name);
    begins.push_back(t.begin);
  }
  EXPECT_THAT(names, ElementsAre("B", "\xC3\xA9", "a", "b", "f", "z"));
  EXPECT_THAT(begins, ElementsAre(0, 8, 8, 12, 20, 21));
  EXPECT_EQ(tensors.back().end, 24U);
}

TEST(HeaderBuild, MetadataComeFirstAndSorted) {
  std::vector<Tensor> tensors{tensor("t", Dtype::u8, {})};
  EXPECT_THAT(
      json_of(build_header(tensors, Metadata{{"z", "1"}, {"format", "pt"}})),
      HasSubstr(R"({"__metadata__":{"format":"pt","z":"1"},"t":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})"));
}

TEST(HeaderBuild, EscapesAsCompactWritersDo) {
  using namespace std::string_literals;
  std::vector<Tensor> tensors{tensor("\"\\/\b\f\n\r\t\x01\x1f\x7f\xC3\xA9\xF0\x9F\x98\x80"s + "\0"s, Dtype::u8, {0})};
  EXPECT_THAT(json_of(build_header(tensors, std::nullopt)),
              HasSubstr("{\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\xC3\xA9\xF0\x9F\x98\x80\\u0000\":{"));
}

TEST(HeaderBuild, WhatItWritesParsesToTheSameTable) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < kDtypeCount; ++i) {
    tensors.push_back(
        tensor("t\"\n" + std::to_string(i), static_cast<Dtype>(i), {static_cast<std::uint64_t>(i % 3), 4, 2}));
  }
  const Metadata metadata{{"a\t", "\\"}, {"b", ""}};
  const std::string json = json_of(build_header(tensors, metadata));
  const auto header =
      parse_header(std::as_bytes(std::span(json.data(), json.size())), 8 + json.size() + tensors.back().end);
  ASSERT_TRUE(header.ok()) << header.error().to_string();
  ASSERT_EQ(header->tensors().size(), tensors.size());
  for (const Tensor& t : tensors) {
    const Tensor* read = header->find(t.name);
    ASSERT_NE(read, nullptr);
    EXPECT_EQ(read->dtype, t.dtype);
    EXPECT_EQ(read->shape, t.shape);
    EXPECT_EQ(read->begin, t.begin);
    EXPECT_EQ(read->end, t.end);
  }
  EXPECT_EQ(header->metadata(), metadata);
}

TEST(HeaderBuild, RefusesWhatItsReaderWouldRefuse) {
  const auto error_of = [](std::vector<Tensor> tensors, std::optional<Metadata> metadata = std::nullopt) {
    const Result<std::string> header = build_header(tensors, metadata);
    EXPECT_FALSE(header.ok());
    return header.ok() ? Error(ErrorCode::internal, "") : header.error();
  };
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 60;
  EXPECT_THAT(error_of({tensor("a", Dtype::u8, {1}), tensor("a", Dtype::f32, {1})}).message(),
              HasSubstr("duplicate name \"a\""));
  EXPECT_THAT(error_of({tensor("__metadata__", Dtype::u8, {1})}).message(), HasSubstr("__metadata__"));
  EXPECT_THAT(error_of({}, Metadata{{"k", "1"}, {"k", "2"}}).message(), HasSubstr("duplicate metadata key \"k\""));
  EXPECT_EQ(error_of({tensor("\xFF", Dtype::u8, {1})}).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error_of({}, Metadata{{"k", "\xFF"}}).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error_of({tensor("a", Dtype::f4, {3})}).kind(), "MisalignedSlice");
  EXPECT_EQ(error_of({tensor("a", Dtype::f32, {kHuge, 16})}).kind(), "ValidationOverflow");
  std::vector<Tensor> many;
  for (int i = 0; i < 9; ++i) many.push_back(tensor(std::to_string(i), Dtype::u8, {(std::uint64_t{1} << 61) - 1}));
  EXPECT_EQ(error_of(many).kind(), "ValidationOverflow");
  EXPECT_EQ(error_of({tensor(std::string(kHeaderLengthMax, 'x'), Dtype::u8, {1})}).kind(), "HeaderTooLarge");
}

}  // namespace
}  // namespace infercluster::safetensors
