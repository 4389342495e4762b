// SPDX-License-Identifier: Apache-2.0
// infercluster checkpoint verify
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>

#include "base/units.h"
#include "cli/checkpoint.h"

namespace infercluster::cli {
namespace {

struct Settings {
  std::string root;
  std::optional<std::uint64_t> step;
  bool all = false;
  Common common;
};

struct Verdict {
  std::string name;  // "step-100", or the path of a single checkpoint
  std::optional<std::uint64_t> step;
  std::optional<Error> unusable;  // it could not be opened
  bool skipped = false;           // it has no commit record, and nobody claims that it is a checkpoint
  checkpoint::VerifyReport report;

  [[nodiscard]] bool good() const { return skipped || (!unusable && report.good()); }
};

// Which to verify: as asked for, or all of them, or the highest that claims to be one.
Result<std::vector<const checkpoint::ListedStep*>> choose(const Settings& settings,
                                                          const checkpoint::Listing& listing) {
  std::vector<const checkpoint::ListedStep*> chosen;
  for (const checkpoint::ListedStep& step : listing.steps) {
    const bool claims = step.durable || step.problem;
    if (settings.step ? step.step == *settings.step : settings.all || claims) chosen.push_back(&step);
  }
  if (!settings.step && !settings.all && chosen.size() > 1) chosen.erase(chosen.begin(), chosen.end() - 1);
  const bool any = std::any_of(chosen.begin(), chosen.end(), [&](const checkpoint::ListedStep* step) {
    return settings.step || step->durable || step->problem;
  });
  if (any) return chosen;
  return Error(ErrorCode::not_found, settings.step ? "there is no " + step_text(*settings.step)
                                                   : std::string("there is no checkpoint to verify"))
      .with_path(settings.root)
      .with_hint("`infercluster checkpoint ls " + settings.root + "` shows what is there");
}

Result<Verdict> verify_one(const std::string& place, std::string name, std::optional<std::uint64_t> step,
                           ProgressLine& line) {
  Verdict verdict{std::move(name), step, std::nullopt, false, {}};
  const auto saved = checkpoint::open_at(place, step);
  if (!saved.ok()) {
    verdict.unusable = saved.error();
    return verdict;
  }
  verdict.step = (*saved)->commit().step;
  IC_TRY(verdict.report, checkpoint::verify(**saved, progress_on(line)));
  return verdict;
}

Result<std::vector<Verdict>> verify_all(const Settings& settings) {
  ProgressLine line(settings.common, "verify");
  std::vector<Verdict> verdicts;
  const auto listing = checkpoint::list(settings.root);
  if (!listing.ok()) {
    if (listing.error().code() != ErrorCode::invalid_argument) return listing.error();
    IC_TRY(Verdict verdict, verify_one(settings.root, settings.root, settings.step, line));
    verdicts.push_back(std::move(verdict));
    return verdicts;
  }
  IC_TRY(const auto chosen, choose(settings, *listing));
  for (const checkpoint::ListedStep* step : chosen) {
    if (!settings.step && !step->durable && !step->problem) {
      verdicts.push_back({step_text(step->step), step->step, std::nullopt, true, {}});
      continue;
    }
    IC_TRY(Verdict verdict, verify_one(settings.root, step_text(step->step), step->step, line));
    verdicts.push_back(std::move(verdict));
  }
  return verdicts;
}

nlohmann::ordered_json to_json(const Verdict& verdict) {
  nlohmann::ordered_json json;
  json["step"] = or_null(verdict.step);
  json["good"] = verdict.good() && !verdict.skipped;
  json["skipped"] = verdict.skipped;
  json["bytes"] = verdict.report.bytes;
  json["seconds"] = verdict.report.seconds;
  json["error"] = or_null(verdict.unusable);
  json["segments"] = nlohmann::ordered_json::array();
  for (const checkpoint::SegmentVerdict& segment : verdict.report.segments) {
    json["segments"].push_back({{"path", segment.path},
                                {"bytes", segment.bytes},
                                {"mode", segment.mode},
                                {"bad_blocks", segment.bad_blocks},
                                {"error", or_null(segment.first_error)}});
  }
  return json;
}

// How its segments were read: ", direct", ", direct and resident".
std::string modes_of(const checkpoint::VerifyReport& report) {
  std::set<std::string> modes;
  for (const checkpoint::SegmentVerdict& segment : report.segments) {
    if (!segment.mode.empty()) modes.insert(segment.mode);
  }
  return modes.empty() ? "" : fmt::format(", {}", fmt::join(modes, " and "));
}

void print(const std::vector<Verdict>& verdicts) {
  for (const Verdict& verdict : verdicts) {
    if (verdict.skipped) {
      fmt::print("{}  {}  not durable: no commit record; it is being saved, or its save was interrupted\n",
                 coloured(Colour::yellow, "----"), verdict.name);
      continue;
    }
    const std::string state = verdict.good() ? coloured(Colour::green, "good") : coloured(Colour::red, "BAD ");
    fmt::print("{}  {}  {} in {} segment{}, {}{}\n", state, verdict.name, format_bytes(verdict.report.bytes),
               verdict.report.segments.size(), verdict.report.segments.size() == 1 ? "" : "s",
               format_seconds(verdict.report.seconds), modes_of(verdict.report));
  }
}

// What is bad, on standard error.
void explain(const std::vector<Verdict>& verdicts) {
  std::size_t bad = 0;
  std::size_t checked = 0;
  std::string text;
  for (const Verdict& verdict : verdicts) {
    if (!verdict.skipped) ++checked;
    if (!verdict.good()) ++bad;
    if (verdict.unusable) text += "\n  " + verdict.unusable->to_string();
    for (const checkpoint::SegmentVerdict& segment : verdict.report.segments) {
      if (segment.first_error) text += "\n  " + segment.first_error->to_string();
    }
  }
  fmt::print(stderr, "infercluster: error: {} of {} checkpoints bad:{}\n", bad, checked, text);
}

int run(const Settings& settings) {
  const auto verdicts = verify_all(settings);
  if (!verdicts.ok()) return fail(settings.common, verdicts.error());
  const bool good = std::all_of(verdicts->begin(), verdicts->end(), [](const Verdict& v) { return v.good(); });
  if (settings.common.json) {
    nlohmann::ordered_json json{{"good", good}, {"steps", nlohmann::ordered_json::array()}};
    for (const Verdict& verdict : *verdicts) json["steps"].push_back(to_json(verdict));
    print_json(json);
  } else if (!settings.common.quiet) {
    print(*verdicts);
  }
  if (good) return kDone;
  explain(*verdicts);
  return kFailed;
}

}  // namespace

void add_checkpoint_verify(CLI::App& group, Action& action) {
  auto settings = std::make_shared<Settings>();
  CLI::App* const command = group.add_subcommand("verify", "Read every byte and hold it against its checksum");
  add_root(*command, settings->root);
  CLI::Option* const step = add_step(*command, settings->step, "Which step (the highest)");
  command->add_flag("--all", settings->all, "All steps; a bad one does not end it")->excludes(step);
  add_common(*command, settings->common);
  set_examples(
      *command,
      "  infercluster checkpoint verify /lustre/run\n"
      "  infercluster checkpoint verify /lustre/run --step 100\n"
      "  infercluster checkpoint verify /lustre/run --all --json\n"
      "  INFERCLUSTER_DIRECT=always infercluster checkpoint verify /lustre/run  # from the storage, whatever the page "
      "cache has\n");
  command->callback([settings, &action] { action = [settings] { return run(*settings); }; });
}

}  // namespace infercluster::cli
