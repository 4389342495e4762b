// SPDX-License-Identifier: Apache-2.0
// infercluster doctor
#include <fmt/core.h>

#include <cstdio>
#include <memory>

#include "cli/common.h"
#include "cli/output.h"

namespace infercluster::cli {
namespace {

struct Settings {
  std::string path;
  Common common;
};

const char* name_of(Finding::Level level) {
  switch (level) {
    case Finding::Level::good:
      return "good";
    case Finding::Level::note:
      return "note";
    case Finding::Level::warning:
      return "warning";
  }
  return "";
}

Colour colour_of(Finding::Level level) {
  switch (level) {
    case Finding::Level::good:
      return Colour::green;
    case Finding::Level::note:
      return Colour::bold;
    case Finding::Level::warning:
      return Colour::yellow;
  }
  return Colour::none;
}

int run(const Settings& settings) {
  const std::vector<Finding> findings = diagnose(settings.path);
  if (settings.common.json) {
    nlohmann::ordered_json json;
    json["version"] = version();
    json["path"] = settings.path;
    json["findings"] = nlohmann::ordered_json::array();
    for (const Finding& finding : findings) {
      json["findings"].push_back({{"level", name_of(finding.level)},
                                  {"subject", finding.subject},
                                  {"state", finding.state},
                                  {"consequence", finding.consequence},
                                  {"remedy", finding.remedy}});
    }
    print_json(json);
    return kDone;
  }
  for (const Finding& finding : findings) {
    if (settings.common.quiet && finding.level != Finding::Level::warning) continue;
    fmt::print("{}  {}: {}\n", coloured(colour_of(finding.level), fmt::format("{:<7}", name_of(finding.level))),
               finding.subject, finding.state);
    if (!finding.consequence.empty()) fmt::print("         {}\n", finding.consequence);
    if (!finding.remedy.empty()) fmt::print("         to do: {}\n", finding.remedy);
  }
  return kDone;
}

}  // namespace

void add_doctor(CLI::App& app, Action& action) {
  auto settings = std::make_shared<Settings>();
  CLI::App* const command =
      app.add_subcommand("doctor", "Say what this machine and a path can do, what follows from it, and what to do");
  command->add_option("PATH", settings->path, "A file, directory or cache whose mount is looked at as well")
      ->type_name("");
  add_common(*command, settings->common);
  set_examples(*command,
               "  infercluster doctor\n"
               "  infercluster doctor /mnt/models/llama --json\n");
  command->callback([settings, &action] { action = [settings] { return run(*settings); }; });
}

}  // namespace infercluster::cli
