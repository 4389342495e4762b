// SPDX-License-Identifier: Apache-2.0
// infercluster checkpoint drain
#include <fmt/core.h>

#include <memory>

#include "base/units.h"
#include "cli/checkpoint.h"

namespace infercluster::cli {
namespace {

struct Settings {
  std::string upper;
  std::string lower;
  std::optional<std::uint64_t> step;
  std::optional<std::uint64_t> max_rate;
  bool replace = false;
  Common common;
};

Result<checkpoint::DrainReport> drain(const Settings& settings) {
  ProgressLine line(settings.common, "drain");
  checkpoint::DrainRequest request;
  request.step = settings.step;
  request.exists = settings.replace ? checkpoint::Exists::replace : checkpoint::Exists::error;
  request.max_write_rate = settings.max_rate.value_or(0);
  request.progress = progress_on(line);
  return checkpoint::drain(settings.upper, settings.lower, request);
}

nlohmann::ordered_json to_json(const checkpoint::DrainReport& report) {
  return {{"step", report.step},
          {"epoch", report.epoch},
          {"was_durable", report.was_durable},
          {"bytes", report.copied.bytes},
          {"bytes_resumed", report.copied.bytes_resumed},
          {"read_direct", report.copied.read_direct},
          {"write_direct", report.copied.write_direct},
          {"seconds", report.seconds}};
}

void print(const Settings& settings, const checkpoint::DrainReport& report) {
  if (report.was_durable) {
    fmt::print("{} is durable already in {}\n", step_text(report.step), settings.lower);
    return;
  }
  fmt::print("{} is durable in {}: {} in {}", step_text(report.step), settings.lower, format_bytes(report.copied.bytes),
             format_seconds(report.seconds));
  if (report.copied.bytes_resumed > 0)
    fmt::print("; {} were there from an earlier drain", format_bytes(report.copied.bytes_resumed));
  fmt::print("\n");
}

int run(const Settings& settings) {
  const auto report = drain(settings);
  if (!report.ok()) return fail(settings.common, report.error());
  if (settings.common.json)
    print_json(to_json(*report));
  else if (!settings.common.quiet)
    print(settings, *report);
  return kDone;
}

}  // namespace

void add_checkpoint_drain(CLI::App& group, Action& action) {
  auto settings = std::make_shared<Settings>();
  CLI::App* const command = group.add_subcommand(
      "drain", "Make a checkpoint of a node's fast storage durable on the shared one; goes on after an interruption");
  command->add_option("FAST", settings->upper, "The folder of the step-N folders that it comes from")
      ->required()
      ->type_name("");
  command->add_option("ROOT", settings->lower, "The folder where it becomes one of the step-N folders")
      ->required()
      ->type_name("");
  add_step(*command, settings->step, "Which step (the latest)");
  add_size(*command, "--max-rate", settings->max_rate, "Bytes per second at most (no limit)");
  command->add_flag("--replace", settings->replace,
                    "ROOT may have the step of another save: it goes when ours is durable");
  add_common(*command, settings->common);
  set_examples(*command,
               "  infercluster checkpoint drain /nvme/run /lustre/run\n"
               "  infercluster checkpoint drain /nvme/run /lustre/run --step 100 --max-rate 2GB\n");
  command->callback([settings, &action] { action = [settings] { return run(*settings); }; });
}

}  // namespace infercluster::cli
