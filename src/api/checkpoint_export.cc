// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "infercluster/checkpoint_tools.h"
#include "io/files.h"
#include "load/selection.h"

namespace infercluster::checkpoint {

Result<std::vector<ExportedTensor>> select(const Checkpoint& checkpoint, const Selection& selection) {
  std::vector<bool> used(selection.patterns.size());
  std::vector<ExportedTensor> selected;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    bool wanted = selection.patterns.empty();
    for (std::size_t i = 0; i < selection.patterns.size(); ++i) {
      if (!load::matches(selection.patterns[i], name)) continue;
      used[i] = true;
      wanted = true;
    }
    if (!wanted || !name.starts_with(selection.prefix)) continue;
    if (name.size() == selection.prefix.size()) {
      return Error(ErrorCode::invalid_argument, "without the prefix it has no name")
          .with_path(checkpoint.path())
          .with_tensor(name);
    }
    selected.push_back({{name, tensor.dtype, tensor.shape}, name.substr(selection.prefix.size())});
  }
  const auto unused = std::find(used.begin(), used.end(), false);
  if (unused == used.end() && !selected.empty()) return selected;
  const std::string hint = "`infercluster checkpoint show` lists the names";
  if (unused != used.end()) {
    return Error(ErrorCode::not_found,
                 "no tensor matches \"" + selection.patterns[static_cast<std::size_t>(unused - used.begin())] + "\"")
        .with_path(checkpoint.path())
        .with_hint(hint);
  }
  return Error(ErrorCode::not_found, "no tensor is selected whose name begins with \"" + selection.prefix + "\"")
      .with_path(checkpoint.path())
      .with_hint(hint);
}

Result<ExportReport> export_to(const Checkpoint& checkpoint, const std::vector<ExportedTensor>& tensors,
                               const std::string& destination, const ExportOptions& options) {
  return export_to(io::system_files(), checkpoint, tensors, destination, options);
}

}  // namespace infercluster::checkpoint
