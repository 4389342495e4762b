// SPDX-License-Identifier: Apache-2.0
// infercluster checkpoint prune
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/units.h"
#include "cli/checkpoint.h"

namespace infercluster::cli {
namespace {

struct Settings {
  std::string root;
  checkpoint::Retention retention;
  bool yes = false;
  Common common;
};

struct Outcome {
  checkpoint::Listing listing;
  std::vector<std::uint64_t> chosen;
  std::vector<checkpoint::Removal> removals;  // of them, when it was asked for

  [[nodiscard]] bool goes(std::uint64_t step) const {
    return std::find(chosen.begin(), chosen.end(), step) != chosen.end();
  }
  [[nodiscard]] std::optional<Error> error_of(std::uint64_t step) const {
    for (const checkpoint::Removal& removal : removals) {
      if (removal.step == step) return removal.error;
    }
    return std::nullopt;
  }
};

Result<Outcome> prune(const Settings& settings) {
  Outcome outcome;
  IC_TRY(outcome.listing, checkpoint::list(settings.root));
  outcome.chosen = choose_to_remove(outcome.listing, settings.retention);
  if (settings.yes) {
    IC_TRY(outcome.removals, checkpoint::remove(settings.root, outcome.chosen));
  }
  return outcome;
}

// "removed", "would go", "stays: ...".
std::string fate_of(const Settings& settings, const Outcome& outcome, const checkpoint::ListedStep& step) {
  if (outcome.goes(step.step)) {
    if (!settings.yes) return "would go";
    const auto error = outcome.error_of(step.step);
    return !error ? "removed" : "could not be removed: " + error->to_string();
  }
  if (step.verified) return outcome.listing.latest == step.step ? "stays: latest" : "stays";
  if (step.durable || step.problem) return "stays: " + state_text(step);
  return "stays: no commit record; it is being saved, or the next job's first save removes it";
}

nlohmann::ordered_json to_json(const Settings& settings, const Outcome& outcome) {
  nlohmann::ordered_json json;
  json["root"] = settings.root;
  json["done"] = settings.yes;
  json["remove"] = nlohmann::ordered_json::array();
  json["stay"] = nlohmann::ordered_json::array();
  json["leftovers"] = nlohmann::ordered_json::array();
  for (const checkpoint::ListedStep& step : outcome.listing.steps) {
    if (outcome.goes(step.step)) {
      json["remove"].push_back(
          {{"step", step.step}, {"bytes", step.bytes}, {"error", or_null(outcome.error_of(step.step))}});
    } else if (step.durable || step.problem) {
      json["stay"].push_back({{"step", step.step}, {"bytes", step.bytes}, {"verified", step.verified}});
    } else {
      json["leftovers"].push_back({{"name", step_text(step.step)}, {"bytes", step.bytes}});
    }
  }
  for (const checkpoint::Trash& trash : outcome.listing.trash)
    json["leftovers"].push_back({{"name", trash.name}, {"bytes", trash.bytes}});
  return json;
}

void print(const Settings& settings, const Outcome& outcome) {
  Table table({"STEP", "AGE", "SIZE", ""}, {1, 2});
  std::uint64_t removed = 0;
  std::uint64_t bytes = 0;
  for (const checkpoint::ListedStep& step : outcome.listing.steps) {
    table.add({step_text(step.step), age_text(step.committed_ns), format_bytes(step.bytes),
               fate_of(settings, outcome, step)});
    if (!outcome.goes(step.step) || outcome.error_of(step.step)) continue;
    ++removed;
    bytes += step.bytes;
  }
  for (const checkpoint::Trash& trash : outcome.listing.trash)
    table.add({trash.name, "", format_bytes(trash.bytes), "on its way out: the next job's first save removes it"});
  fmt::print("{}", table.text());
  const std::size_t count = outcome.chosen.size();
  if (settings.yes)
    fmt::print("removed {} of {} checkpoints, {}\n", removed, count, format_bytes(bytes));
  else
    fmt::print("{} checkpoints would go, {}{}\n", count, format_bytes(bytes),
               count > 0 ? "; nothing was removed: --yes removes them" : "");
}

int run(const Settings& settings) {
  const auto outcome = prune(settings);
  if (!outcome.ok()) return fail(settings.common, outcome.error());
  if (settings.common.json)
    print_json(to_json(settings, *outcome));
  else if (!settings.common.quiet)
    print(settings, *outcome);
  bool failed = false;
  for (const checkpoint::Removal& removal : outcome->removals) {
    if (!removal.error) continue;
    failed = true;
    fmt::print(stderr, "infercluster: error: {}\n", removal.error->to_string());
  }
  return failed ? kFailed : kDone;
}

}  // namespace

void add_checkpoint_prune(CLI::App& group, Action& action) {
  auto settings = std::make_shared<Settings>();
  CLI::App* const command =
      group.add_subcommand("prune", "Remove old checkpoints; shows what would go, and removes it with --yes alone");
  add_root(*command, settings->root);
  command->add_option("--keep", settings->retention.keep, "How many of the verified ones stay, the newest")
      ->required()
      ->check(CLI::PositiveNumber)
      ->type_name("K");
  command->add_option("--keep-every", settings->retention.keep_every, "And those whose step it divides")
      ->check(CLI::PositiveNumber)
      ->type_name("M");
  command->add_flag("--yes", settings->yes, "Remove them");
  add_common(*command, settings->common);
  set_examples(*command,
               "  infercluster checkpoint prune /lustre/run --keep 3                     # shows what would go\n"
               "  infercluster checkpoint prune /lustre/run --keep 3 --keep-every 1000 --yes\n");
  command->callback([settings, &action] { action = [settings] { return run(*settings); }; });
}

}  // namespace infercluster::cli
