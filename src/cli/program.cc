// SPDX-License-Identifier: Apache-2.0
#include "cli/program.h"

#include <iostream>

namespace infercluster::cli {
namespace {

constexpr const char* kEnvironment = R"(
Exit codes: 0 done, 1 failed, 2 wrong usage; 130 and 143 after SIGINT and SIGTERM. `checkpoint diff` is as diff(1).

Environment (options on the command line come first):
  INFERCLUSTER_BACKEND=auto|uring|threads     INFERCLUSTER_DIRECT=auto|always|never
  INFERCLUSTER_PAGE_CACHE=auto|keep|bypass    INFERCLUSTER_MEMORY=SIZE
  INFERCLUSTER_VERIFY=auto|always|never       INFERCLUSTER_SEAL_DIR=DIR
  INFERCLUSTER_LOG=debug|info|warning|error|off
  HF_HOME, HF_HUB_CACHE                       where the Hugging Face cache is
  NO_COLOR                                    no colours

Examples:
  infercluster load ./model --verify
  infercluster plan org/name --world 8
  infercluster doctor ./model
  infercluster checkpoint ls /lustre/run
)";

}  // namespace

std::unique_ptr<CLI::App> make_app(Action& action) {
  auto app = std::make_unique<CLI::App>(
      "Model weights from storage into memory at the speed of the device, and the checkpoints of training jobs.",
      "infercluster");
  app->set_version_flag("--version", "infercluster " + std::string(version()));
  app->require_subcommand(1);
  app->footer(kEnvironment);
  add_load(*app, action);
  add_inspect(*app, action);
  add_plan(*app, action);
  add_verify(*app, action);
  add_seal(*app, action);
  add_checkpoint(*app, action);
  add_target(*app, action);
  add_initiator(*app, action);
  add_doctor(*app, action);
  add_synth(*app, action);
  add_completion(*app, action);
  return app;
}

int run_program(int argc, const char* const* argv) {
  Action action;
  const auto app = make_app(action);
  try {
    app->parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // also how CLI11 asks for --help and --version to be shown
    return app->exit(error, std::cout, std::cerr) == 0 ? kDone : kWrongUsage;
  }
  return action();
}

}  // namespace infercluster::cli
