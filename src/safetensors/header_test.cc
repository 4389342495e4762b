// SPDX-License-Identifier: Apache-2.0
#include "safetensors/header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace infercluster::safetensors {
namespace {

using testing::HasSubstr;

Result<std::uint64_t> length_of(std::string_view first_bytes, std::uint64_t file_size) {
  const std::string_view prefix = first_bytes.substr(0, 8);
  return parse_header_length(std::as_bytes(std::span(prefix.data(), prefix.size())), file_size);
}

std::string prefix_of(std::uint64_t length) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i) & 0xFF);
  return bytes;
}

TEST(HeaderLength, IsLittleEndian) {
  EXPECT_EQ(length_of(prefix_of(2), 10).value(), 2U);
  EXPECT_EQ(length_of(prefix_of(0x012345), 1'000'000).value(), 0x012345U);
  EXPECT_EQ(length_of(prefix_of(0), 8).value(), 0U);  // refused by the parser, as empty JSON
}

TEST(HeaderLength, LimitsAreExact) {
  EXPECT_EQ(length_of(prefix_of(kHeaderLengthMax), kHeaderLengthMax + 8).value(), kHeaderLengthMax);
  EXPECT_EQ(length_of(prefix_of(kHeaderLengthMax), kHeaderLengthMax + 7).error().kind(), "InvalidHeaderLength");
  EXPECT_EQ(length_of(prefix_of(kHeaderLengthMax + 1), 8).error().kind(), "HeaderTooLarge");
  EXPECT_EQ(length_of(prefix_of(UINT64_MAX), UINT64_MAX).error().kind(), "HeaderTooLarge");
}

TEST(HeaderLength, ShortFilesAreTooSmall) {
  const std::string seven = std::string(7, 'x');
  EXPECT_EQ(length_of(seven, 7).error().kind(), "HeaderTooSmall");
  EXPECT_THAT(length_of(seven, 7).error().to_string(), HasSubstr("7 bytes"));
  EXPECT_EQ(length_of("", 0).error().kind(), "HeaderTooSmall");
  EXPECT_THAT(length_of("", 0).error().to_string(), HasSubstr("empty"));
}

TEST(HeaderLength, CutInsideTheHeaderNamesBothSizes) {
  const Error error = length_of(prefix_of(5000), 4000).error();
  EXPECT_EQ(error.kind(), "InvalidHeaderLength");
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_THAT(error.message(), HasSubstr("5000"));
  EXPECT_THAT(error.message(), HasSubstr("4000"));
}

TEST(HeaderLength, WhatIsNotSafetensorsIsNamed) {
  struct Row {
    std::string first_bytes;
    const char* expected;
  };
  const Row rows[] = {
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4976698672\n", "Git LFS pointer"},
      {"<!DOCTYPE html><html>", "HTML page"},
      {"<!doctype html>", "HTML page"},
      {"<html><body>503", "HTML page"},
      {"<?xml version=\"1.0\"?>", "XML"},
      {std::string("PK\x03\x04\x00\x00\x08\x08", 8), "zip archive"},
      {"\x80\x02}q\x01(X\x05", "pickle"},
      {std::string("GGUF\x03\x00\x00\x00", 8), "GGUF"},
      {"{\"error\":\"not found\"}", "JSON document"},
      {"Entry not found", "server's error"},
  };
  for (const Row& row : rows) {
    const Error error = length_of(row.first_bytes, 1000).error();
    EXPECT_THAT(error.message(), HasSubstr(row.expected));
    EXPECT_THAT(error.message(), HasSubstr("not a safetensors file"));
    EXPECT_FALSE(error.hint().empty());
    EXPECT_EQ(error.code(), ErrorCode::corrupt);
  }
  EXPECT_EQ(length_of(rows[0].first_bytes, 134).error().kind(), "HeaderTooLarge");
  EXPECT_THAT(length_of(rows[0].first_bytes, 134).error().hint(), HasSubstr("git lfs pull"));
}

TEST(TensorBytes, MultipliesAndChecks) {
  const auto bytes = [](Dtype dtype, std::vector<std::uint64_t> shape) { return tensor_bytes(dtype, shape); };
  constexpr std::uint64_t kHalf = std::uint64_t{1} << 63;
  EXPECT_EQ(bytes(Dtype::f32, {}).value(), 4U);
  EXPECT_EQ(bytes(Dtype::f64, {2, 3, 5}).value(), 240U);
  EXPECT_EQ(bytes(Dtype::f4, {2, 3}).value(), 3U);
  EXPECT_EQ(bytes(Dtype::f6_e2m3, {4}).value(), 3U);
  EXPECT_EQ(bytes(Dtype::f32, {0, kHalf, 2}).value(), 0U);
  EXPECT_EQ(bytes(Dtype::f32, {kHalf, 2, 0}).error().kind(), "ValidationOverflow");
  EXPECT_EQ(bytes(Dtype::u8, {kHalf}).error().kind(), "ValidationOverflow");  // counted in bits
  EXPECT_EQ(bytes(Dtype::u8, {kHalf / 4 - 1}).value(), kHalf / 4 - 1);
  EXPECT_EQ(bytes(Dtype::f4, {3}).error().kind(), "MisalignedSlice");
  EXPECT_EQ(bytes(Dtype::f6_e3m2, {2}).error().kind(), "MisalignedSlice");
}

TEST(HeaderTable, FindsByName) {
  std::vector<Tensor> tensors(3);
  tensors[0].name = "b";
  tensors[1].name = std::string("a\0c", 3);
  tensors[2].name = "";
  Header header(std::move(tensors), std::nullopt, 8, 8);
  const Header moved = std::move(header);
  ASSERT_NE(moved.find("b"), nullptr);
  EXPECT_EQ(moved.find("b")->name, "b");
  EXPECT_EQ(moved.find(std::string_view("a\0c", 3)), &moved.tensors()[1]);
  EXPECT_EQ(moved.find(""), &moved.tensors()[2]);
  EXPECT_EQ(moved.find("a"), nullptr);
  EXPECT_EQ(moved.duplicate(), nullptr);
}

TEST(HashedNames, AreSortedFoundAndToldApartAtEverySize) {
  for (const std::size_t count : {0U, 1U, 2U, 3U, 63U, 64U, 65U, 1000U, 4096U}) {
    std::vector<std::string> list;
    for (std::size_t i = 0; i < count; ++i) list.push_back("n" + std::to_string(i));
    const auto name_at = [&list](std::size_t i) -> const std::string& { return list[i]; };
    const std::vector<HashedName> names = hash_names(count, name_at);
    ASSERT_EQ(names.size(), count);
    EXPECT_TRUE(std::is_sorted(names.begin(), names.end(), [](auto a, auto b) { return a.hash < b.hash; })) << count;
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(find_name(names, list[i], name_at), i);
    EXPECT_EQ(find_name(names, "m", name_at), std::nullopt);
    EXPECT_EQ(find_duplicate(names, name_at), std::nullopt);
    if (count < 2) continue;
    list.back() = list.front();
    const std::vector<HashedName> twice = hash_names(count, name_at);
    EXPECT_EQ(find_duplicate(twice, name_at), count - 1);
    EXPECT_EQ(find_name(twice, list.front(), name_at), 0U);
    EXPECT_EQ(last_of_each(twice, name_at).size(), count - 1);
    EXPECT_EQ(last_of_each(twice, name_at).front(), 1U);
  }
}

}  // namespace
}  // namespace infercluster::safetensors
