// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/export_plan.h"

#include <algorithm>
#include <unordered_map>

#include "base/checked.h"
#include "safetensors/header.h"
#include "safetensors/index.h"

namespace infercluster::checkpoint {
namespace {

using FileTensors = std::vector<const ExportedTensor*>;  // of one file

// Transformers and its kin ask for it.
const safetensors::Metadata kMetadata{{"format", "pt"}};

Result<std::vector<FileTensors>> spread(std::span<const ExportedTensor> tensors, std::uint64_t shard_bytes,
                                        std::uint64_t& data_bytes) {
  std::vector<FileTensors> groups;
  std::uint64_t filled = 0;
  for (const ExportedTensor& tensor : tensors) {
    IC_TRY(const std::uint64_t bytes, safetensors::tensor_bytes(tensor.source.dtype, tensor.source.shape));
    const auto sum = checked_add(data_bytes, bytes);
    if (!sum) return Error(ErrorCode::too_large, "the tensors have more than 2^64 bytes together");
    data_bytes = *sum;
    const bool fits = filled <= shard_bytes && bytes <= shard_bytes - filled;
    if (groups.empty() || (!fits && filled > 0)) {
      groups.emplace_back();
      filled = 0;
    }
    groups.back().push_back(&tensor);
    filled += bytes;
  }
  return groups;
}

std::string five_digits(std::size_t number) {
  const std::string digits = std::to_string(number);
  return digits.size() < 5 ? std::string(5 - digits.size(), '0') + digits : digits;
}

std::string file_name(std::size_t number, std::size_t files) {
  if (files == 1) return "model.safetensors";
  return "model-" + five_digits(number + 1) + "-of-" + five_digits(files) + ".safetensors";
}

Result<ExportFile> plan_file(const FileTensors& group, std::string name) {
  ExportFile file;
  file.name = std::move(name);
  std::vector<safetensors::Tensor> tensors;
  std::unordered_map<std::string_view, const ExportedTensor*> by_name;
  for (const ExportedTensor* tensor : group) {
    by_name.emplace(tensor->name, tensor);
    tensors.push_back(
        {.name = tensor->name, .dtype = tensor->source.dtype, .shape = tensor->source.shape, .begin = 0, .end = 0});
  }
  IC_TRY(file.header, safetensors::build_header(tensors, kMetadata));
  for (const safetensors::Tensor& tensor : tensors) file.sources.push_back(by_name.at(tensor.name)->source);
  const auto bytes = checked_add<std::uint64_t>(file.header.size(), tensors.back().end);
  if (!bytes) return Error(ErrorCode::too_large, "a file would have more than 2^64 bytes");
  file.bytes = *bytes;
  return file;
}

}  // namespace

Result<ExportPlan> plan_export(std::span<const ExportedTensor> tensors, std::uint64_t shard_bytes) {
  if (tensors.empty()) return Error(ErrorCode::not_found, "there is no tensor to export");
  ExportPlan plan;
  IC_TRY(const std::vector<FileTensors> groups, spread(tensors, shard_bytes, plan.data_bytes));
  safetensors::Index index;
  index.total_size = plan.data_bytes;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    IC_TRY(ExportFile file, plan_file(groups[i], file_name(i, groups.size())));
    for (const ExportedTensor* tensor : groups[i]) index.weight_map.emplace_back(tensor->name, file.name);
    plan.files.push_back(std::move(file));
  }
  std::sort(index.weight_map.begin(), index.weight_map.end());
  const auto twice = std::adjacent_find(index.weight_map.begin(), index.weight_map.end(),
                                        [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice != index.weight_map.end())
    return Error(ErrorCode::invalid_argument, "two tensors would have this name").with_tensor(twice->first);
  if (plan.files.size() > 1) plan.index = safetensors::build_index(index);
  return plan;
}

}  // namespace infercluster::checkpoint
