// SPDX-License-Identifier: Apache-2.0
// Commands that need torch: they are run by the Python package.
#pragma once

#include <string>
#include <vector>

namespace infercluster::cli {

struct Common;

// Becomes the interpreter that INFERCLUSTER_PYTHON names (python3) with the words for infercluster._checkpoint.convert,
// and does not return; else the exit code.
int become_python_tool(const Common& common, const std::vector<std::string>& words);

}  // namespace infercluster::cli
