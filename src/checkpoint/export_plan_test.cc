// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/export_plan.h"

#include <gtest/gtest.h>

#include "safetensors/header.h"
#include "safetensors/index.h"

namespace infercluster::checkpoint {
namespace {

using safetensors::Dtype;

std::vector<ExportedTensor> bytes_tensors(const std::vector<std::uint64_t>& sizes) {
  std::vector<ExportedTensor> tensors;
  for (const std::uint64_t size : sizes) {
    const std::string name = "t" + std::to_string(tensors.size());
    tensors.push_back({{"model." + name, Dtype::u8, {size}}, name});
  }
  return tensors;
}

std::vector<std::string> names_of(const ExportFile& file) {
  std::vector<std::string> names;
  for (const WindowedTensor& source : file.sources) names.push_back(source.name);
  return names;
}

using Names = std::vector<std::string>;

TEST(PlanExport, FillsFilesInOrderAndGivesALargeTensorItsOwn) {
  const auto plan = plan_export(bytes_tensors({40, 60, 1, 500, 0, 30}), 100);
  ASSERT_TRUE(plan.ok()) << plan.error().to_string();
  ASSERT_EQ(plan->files.size(), 4U);
  EXPECT_EQ(plan->files[0].name, "model-00001-of-00004.safetensors");
  EXPECT_EQ(plan->files[3].name, "model-00004-of-00004.safetensors");
  EXPECT_EQ(names_of(plan->files[0]), (Names{"model.t0", "model.t1"}));
  EXPECT_EQ(names_of(plan->files[1]), (Names{"model.t2"}));
  EXPECT_EQ(names_of(plan->files[2]), (Names{"model.t3"}));
  EXPECT_EQ(names_of(plan->files[3]), (Names{"model.t4", "model.t5"}));
  EXPECT_EQ(plan->data_bytes, 631U);
  EXPECT_EQ(plan->files[2].bytes, plan->files[2].header.size() + 500);
  const auto index = safetensors::parse_index(plan->index);
  ASSERT_TRUE(index.ok());
  EXPECT_EQ(index->total_size, 631U);
  EXPECT_EQ(index->weight_map.size(), 6U);
  EXPECT_EQ(index->weight_map[3], std::pair(std::string("t3"), plan->files[2].name));
}

TEST(PlanExport, OneFileNeedsNoIndex) {
  const auto plan = plan_export(bytes_tensors({40, 60}), 100);
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->files.size(), 1U);
  EXPECT_EQ(plan->files[0].name, "model.safetensors");
  EXPECT_TRUE(plan->index.empty());
}

TEST(PlanExport, BytesFollowInTheOrderOfTheHeader) {
  const std::vector<ExportedTensor> tensors{
      {{"b", Dtype::u8, {3}}, "b"}, {{"a", Dtype::u8, {5}}, "a"}, {{"z", Dtype::f32, {2}}, "z"}};
  const auto plan = plan_export(tensors, 100);
  ASSERT_TRUE(plan.ok());
  const ExportFile& file = plan->files[0];
  const auto header =
      safetensors::parse_header(std::as_bytes(std::span(file.header)).subspan(safetensors::kPrefixBytes), file.bytes);
  ASSERT_TRUE(header.ok()) << header.error().to_string();
  Names in_file;
  for (const safetensors::Tensor& tensor : header->tensors()) in_file.push_back(tensor.name);
  EXPECT_EQ(names_of(file), in_file);
  EXPECT_EQ(in_file, (Names{"z", "a", "b"}));
}

TEST(PlanExport, NoTensorAndTwoOfOneNameAreRefused) {
  EXPECT_EQ(plan_export({}, 100).error().code(), ErrorCode::not_found);
  std::vector<ExportedTensor> tensors = bytes_tensors({60, 60});
  tensors[1].name = tensors[0].name;
  EXPECT_EQ(plan_export(tensors, 1000).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(plan_export(tensors, 100).error().code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace infercluster::checkpoint
