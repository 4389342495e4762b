// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "cli/common.h"

namespace infercluster::cli {

// The program's options and subcommands; parsing sets `action`, which outlives it.
std::unique_ptr<CLI::App> make_app(Action& action);

// Parses and does what was asked for; the exit code.
int run_program(int argc, const char* const* argv);

}  // namespace infercluster::cli
