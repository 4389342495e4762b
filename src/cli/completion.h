// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cli/common.h"

namespace infercluster::cli {

// A completion script made from the program's own commands and options. `shell` is "bash", "zsh" or "fish".
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace infercluster::cli
