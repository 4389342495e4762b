// SPDX-License-Identifier: Apache-2.0
// infercluster checkpoint import
#include <memory>

#include "cli/checkpoint.h"
#include "cli/python_tool.h"

namespace infercluster::cli {
namespace {

struct Settings {
  std::string source;
  std::string root;
  std::uint64_t step = 0;
  bool replace = false;
  Common common;
};

int run(const Settings& settings) {
  std::vector<std::string> words{"import", settings.source, settings.root, "--step", std::to_string(settings.step)};
  if (settings.replace) words.emplace_back("--replace");
  return become_python_tool(settings.common, words);
}

}  // namespace

void add_checkpoint_import(CLI::App& group, Action& action) {
  auto settings = std::make_shared<Settings>();
  CLI::App* const command = group.add_subcommand("import", "Save a checkpoint of torch's formats as one of ours");
  command
      ->add_option("SOURCE", settings->source,
                   "A directory of torch.distributed.checkpoint, or a file of torch.save (dict of tensors and values). "
                   "Only from people you trust: objects in the former are unpickled")
      ->required()
      ->type_name("");
  add_root(*command, settings->root);
  command->add_option("--step", settings->step, "As which step")->required()->type_name("N");
  command->add_flag("--replace", settings->replace,
                    "The step may be there already: it goes when the new one is durable");
  add_common(*command, settings->common);
  set_examples(*command,
               "  infercluster checkpoint import ./outputs/checkpoint/step-1000 /lustre/run --step 1000\n"
               "  infercluster checkpoint import ./state.pt /lustre/run --step 0\n");
  command->callback([settings, &action] { action = [settings] { return run(*settings); }; });
}

}  // namespace infercluster::cli
