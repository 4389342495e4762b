// SPDX-License-Identifier: Apache-2.0
#include "load/selection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace infercluster::load {
namespace {

using ::testing::HasSubstr;

class SelectionTest : public ::testing::Test {
 protected:
  SelectionTest() {
    std::vector<safetensors::Tensor> tensors;
    for (const char* name : {"layers.0.q", "layers.0.k", "layers.1.q", "norm"}) {
      const std::uint64_t begin = tensors.size() * 16;
      tensors.push_back({name, safetensors::Dtype::u8, {4, 4}, begin, begin + 16});
    }
    header_ = safetensors::Header(std::move(tensors), std::nullopt, 100, 164);
    tables_.shards.push_back(&header_);
    for (std::size_t i = 0; i < 4; ++i) tables_.tensors.push_back({0, i});
  }

  std::vector<std::string> names(const Options& options) {
    std::vector<std::string> found;
    const auto wanted = select_tensors(tables_, options);
    if (!wanted.ok()) return {wanted.error().to_string()};
    for (const WantedTensor& one : *wanted) found.push_back(tables_.tensor(one.ref).name);
    return found;
  }

  safetensors::Header header_;
  Tables tables_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(64);
};

TEST_F(SelectionTest, NamesAndPatternsKeepTheOrderOfTheFile) {
  EXPECT_EQ(names({}).size(), 4U);
  Options options;
  options.names = {"norm", "*.q"};
  EXPECT_EQ(names(options), (std::vector<std::string>{"layers.0.q", "layers.1.q", "norm"}));
}

TEST_F(SelectionTest, AllThatIsMissingIsListedAtOnce) {
  Options options;
  options.names = {"norm", "nor", "x*", "layers.0.q"};
  const auto wanted = select_tensors(tables_, options);
  ASSERT_FALSE(wanted.ok());
  EXPECT_EQ(wanted.error().code(), ErrorCode::not_found);
  EXPECT_THAT(wanted.error().message(), HasSubstr("\"nor\", \"x*\""));
}

TEST_F(SelectionTest, SliceRulesApplyFirstMatchFirst) {
  Options options;
  options.slices = {{"layers.0.*", {{0, 1}}, std::nullopt}, {"*", {{0, 2}}, std::nullopt}};
  const auto wanted = select_tensors(tables_, options).value();
  EXPECT_EQ(wanted[0].part.bytes, 4U);
  EXPECT_EQ(wanted[2].part.bytes, 8U);
  EXPECT_EQ(wanted[2].part.rows.front().file_offset, 100U + 32);
  options.slices = {{"nothing", {}, std::nullopt}};
  EXPECT_FALSE(select_tensors(tables_, options).ok());
}

TEST_F(SelectionTest, TheFirstSliceRuleDecidesWhetherItIsANameOrAPattern) {
  Options options;
  options.slices = {{"layers.0.k", {{0, 1}}, std::nullopt},
                    {"*.?", {{0, 2}}, std::nullopt},
                    {"layers.1.q", {{0, 3}}, std::nullopt},
                    {"norm", {{0, 3}}, std::nullopt},
                    {"norm", {{0, 4}}, std::nullopt}};
  const auto refused = select_tensors(tables_, options);
  ASSERT_FALSE(refused.ok());  // the second rule for norm and the one for layers.1.q come too late
  EXPECT_THAT(refused.error().message(), HasSubstr("\"layers.1.q\", \"norm\""));
  options.slices.erase(options.slices.begin() + 4);
  options.slices.erase(options.slices.begin() + 2);
  const auto wanted = select_tensors(tables_, options).value();
  EXPECT_EQ(wanted[0].part.bytes, 8U);
  EXPECT_EQ(wanted[1].part.bytes, 4U);
  EXPECT_EQ(wanted[2].part.bytes, 8U);
  EXPECT_EQ(wanted[3].part.bytes, 12U);
}

TEST_F(SelectionTest, CallersMemoryMustFit) {
  const auto span = [&](std::size_t offset, std::uint64_t bytes) {
    return memory::Span{memory::Kind::host, -1, reinterpret_cast<std::uintptr_t>(memory_.data()) + offset, bytes};
  };
  Options options;
  options.into = {{"norm", span(0, 16)}, {"layers.0.q", span(16, 16)}};
  EXPECT_TRUE(select_tensors(tables_, options).ok());
  options.into = {{"norm", span(0, 15)}};
  EXPECT_FALSE(select_tensors(tables_, options).ok());
  options.into = {{"norm", span(0, 16)}, {"layers.0.q", span(8, 16)}};
  EXPECT_FALSE(select_tensors(tables_, options).ok());
  options.into = {{"norm", span(0, 16)}, {"norm", span(32, 16)}};
  EXPECT_FALSE(select_tensors(tables_, options).ok());
  options.into = {{"nobody", span(0, 16)}};
  EXPECT_FALSE(select_tensors(tables_, options).ok());
}

TEST(Matches, ShellPatterns) {
  EXPECT_TRUE(matches("a*c", "abbc"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("**a*", "bca"));
  EXPECT_TRUE(matches("layers.[0-3].?", "layers.2.q"));
  EXPECT_TRUE(matches("[!a]b", "cb"));
  EXPECT_TRUE(matches("[]]", "]"));
  EXPECT_TRUE(matches("a\\*", "a*"));
  EXPECT_TRUE(matches("[", "["));
  EXPECT_FALSE(matches("a*c", "abb"));
  EXPECT_FALSE(matches("", "a"));
  EXPECT_FALSE(matches("[!a]b", "ab"));
  EXPECT_FALSE(matches("a\\*", "ab"));
  EXPECT_FALSE(matches("*.q", "layers.0.k"));
}

}  // namespace
}  // namespace infercluster::load
