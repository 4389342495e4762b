// SPDX-License-Identifier: Apache-2.0
// How tensors are spread over the files of a Hugging Face repository. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/tensor_windows.h"

namespace infercluster::checkpoint {

struct ExportedTensor {
  WindowedTensor source;  // as the checkpoint calls it
  std::string name;       // as the repository does
};

struct ExportFile {
  std::string name;                     // "model-00001-of-00003.safetensors"
  std::string header;                   // what lies before the data
  std::vector<WindowedTensor> sources;  // in the order in which their bytes follow, without gaps
  std::uint64_t bytes = 0;              // of the whole file
};

struct ExportPlan {
  std::vector<ExportFile> files;
  std::string index;             // the text of model.safetensors.index.json; empty: a single file needs none
  std::uint64_t data_bytes = 0;  // of all tensors
};

// Fills file after file, in the order given, up to `shard_bytes` of tensors; a larger tensor gets a file of its own.
// Errors: not_found (no tensor), invalid_argument (two tensors of one name, a name that no file can hold), too_large.
Result<ExportPlan> plan_export(std::span<const ExportedTensor> tensors, std::uint64_t shard_bytes);

inline constexpr char kExportIndexName[] = "model.safetensors.index.json";

}  // namespace infercluster::checkpoint
