// SPDX-License-Identifier: Apache-2.0
// infercluster checkpoint
#include "cli/checkpoint.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>

#include "cli/signals.h"

namespace infercluster::cli {

CLI::Option* add_root(CLI::App& command, std::string& root) {
  return command.add_option("ROOT", root, "The folder whose subfolders step-N are checkpoints")
      ->required()
      ->type_name("");
}

CLI::Option* add_step(CLI::App& command, std::optional<std::uint64_t>& step, const std::string& description) {
  return command.add_option("--step", step, description)->type_name("N");
}

checkpoint::WorkProgress progress_on(ProgressLine& line) {
  return [&line](std::uint64_t bytes_done, std::uint64_t bytes_total) {
    line.update({bytes_done, bytes_total});
    return caught_signal() == 0;
  };
}

std::string step_text(std::uint64_t step) {
  return "step-" + std::to_string(step);
}

std::string age_text(const std::optional<std::int64_t>& committed_ns) {
  if (!committed_ns) return {};
  const std::chrono::nanoseconds now = std::chrono::system_clock::now().time_since_epoch();
  const std::int64_t seconds = std::max<std::int64_t>(0, (now.count() - *committed_ns) / 1'000'000'000);
  if (seconds < 120) return fmt::format("{} s", seconds);
  if (seconds < std::int64_t{120} * 60) return fmt::format("{} min", seconds / 60);
  if (seconds < std::int64_t{48} * 3600) return fmt::format("{} h", seconds / 3600);
  return fmt::format("{} d", seconds / 86'400);
}

std::string state_text(const checkpoint::ListedStep& step) {
  if (step.verified) return "durable, verified";
  if (step.stock_dcp) return "stock DCP checkpoint (torch.distributed.checkpoint)";
  const std::string why = step.problem ? step.problem->to_string() : "no commit record";
  return (step.durable ? "durable, not verified: " : "not durable: ") + why;
}

nlohmann::ordered_json or_null(const std::optional<Error>& error) {
  return error ? to_json(*error) : nlohmann::ordered_json(nullptr);
}

void add_checkpoint(CLI::App& app, Action& action) {
  CLI::App* const group =
      app.add_subcommand("checkpoint", "List, look at, verify, compare, prune, drain, import and export checkpoints");
  group->require_subcommand(1);
  add_checkpoint_ls(*group, action);
  add_checkpoint_show(*group, action);
  add_checkpoint_verify(*group, action);
  add_checkpoint_diff(*group, action);
  add_checkpoint_prune(*group, action);
  add_checkpoint_drain(*group, action);
  add_checkpoint_import(*group, action);
  add_checkpoint_export(*group, action);
  set_examples(*group,
               "  infercluster checkpoint ls /lustre/run\n"
               "  infercluster checkpoint verify /lustre/run --all\n"
               "  infercluster checkpoint export /lustre/run ./model --format hf --prefix model.\n");
}

}  // namespace infercluster::cli
