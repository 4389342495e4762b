// SPDX-License-Identifier: Apache-2.0
// infercluster checkpoint ls
#include <fmt/core.h>

#include <memory>

#include "base/units.h"
#include "cli/checkpoint.h"

namespace infercluster::cli {
namespace {

struct Settings {
  std::string root;
  Common common;
};

nlohmann::ordered_json to_json(const checkpoint::ListedStep& step, bool latest) {
  nlohmann::ordered_json json;
  json["step"] = step.step;
  json["durable"] = step.durable;
  json["verified"] = step.verified;
  json["latest"] = latest;
  json["bytes"] = step.bytes;
  json["epoch"] = step.durable ? nlohmann::ordered_json(step.epoch) : nlohmann::ordered_json(nullptr);
  json["world"] = step.durable ? nlohmann::ordered_json(step.world) : nlohmann::ordered_json(nullptr);
  std::optional<double> committed;  // seconds since 1970
  if (step.committed_ns) committed = static_cast<double>(*step.committed_ns) / 1e9;
  json["committed"] = or_null(committed);
  json["stock_dcp"] = step.stock_dcp;
  json["problem"] = or_null(step.problem);
  return json;
}

nlohmann::ordered_json to_json(const std::string& root, const checkpoint::Listing& listing) {
  nlohmann::ordered_json json;
  json["root"] = root;
  json["latest"] = or_null(listing.latest);
  json["steps"] = nlohmann::ordered_json::array();
  for (const checkpoint::ListedStep& step : listing.steps)
    json["steps"].push_back(to_json(step, listing.latest == step.step));
  json["trash"] = nlohmann::ordered_json::array();
  for (const checkpoint::Trash& trash : listing.trash)
    json["trash"].push_back({{"name", trash.name}, {"bytes", trash.bytes}});
  return json;
}

void print(const std::string& root, const checkpoint::Listing& listing) {
  Table table({"STEP", "AGE", "SIZE", "RANKS", "STATE"}, {1, 2, 3});
  for (const checkpoint::ListedStep& step : listing.steps) {
    table.add({step_text(step.step), age_text(step.committed_ns), format_bytes(step.bytes),
               step.durable ? std::to_string(step.world) : std::string(),
               state_text(step) + (listing.latest == step.step ? ", latest" : "")});
  }
  for (const checkpoint::Trash& trash : listing.trash)
    table.add({trash.name, "", format_bytes(trash.bytes), "", "on its way out: the next save removes it"});
  if (listing.steps.empty() && listing.trash.empty())
    fmt::print("no checkpoints in {}\n", root);
  else
    fmt::print("{}", table.text());
}

int run(const Settings& settings) {
  const auto listing = checkpoint::list(settings.root);
  if (!listing.ok()) return fail(settings.common, listing.error());
  if (settings.common.json)
    print_json(to_json(settings.root, *listing));
  else if (!settings.common.quiet)
    print(settings.root, *listing);
  return kDone;
}

}  // namespace

void add_checkpoint_ls(CLI::App& group, Action& action) {
  auto settings = std::make_shared<Settings>();
  CLI::App* const command =
      group.add_subcommand("ls", "List steps: age, size, ranks, durable, verified, latest; and what saves left behind");
  add_root(*command, settings->root);
  add_common(*command, settings->common);
  set_examples(*command,
               "  infercluster checkpoint ls /lustre/run\n"
               "  infercluster checkpoint ls /lustre/run --json\n");
  command->callback([settings, &action] { action = [settings] { return run(*settings); }; });
}

}  // namespace infercluster::cli
