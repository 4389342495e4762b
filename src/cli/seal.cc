// SPDX-License-Identifier: Apache-2.0
// infercluster seal
#include <fmt/core.h>

#include <cstdio>
#include <memory>

#include "base/units.h"
#include "cli/common.h"
#include "cli/output.h"

namespace infercluster::cli {
namespace {

struct Settings {
  SourceOptions source;
  SealOptions seal;
  Common common;
};

nlohmann::ordered_json to_json(const SealReport& report) {
  nlohmann::ordered_json json;
  json["seconds"] = report.seconds;
  json["files"] = nlohmann::ordered_json::array();
  for (const SealReport::File& file : report.files) {
    json["files"].push_back(
        {{"path", file.path}, {"seal", file.seal_path}, {"bytes", file.bytes}, {"crc32c", file.root}});
  }
  return json;
}

int run(const Settings& settings) {
  const auto report = with_progress(settings.source, settings.common, "seal",
                                    [&](const load::Repository& repository, const ProgressCallback& callback) {
                                      return seal(repository, settings.seal, callback);
                                    });
  if (!report.ok()) return fail(settings.common, report.error());
  if (settings.common.json) {
    print_json(to_json(*report));
    return kDone;
  }
  if (settings.common.quiet) return kDone;
  std::uint64_t bytes = 0;
  for (const SealReport::File& file : report->files) {
    fmt::print("{}  {}  {}\n", file.root, format_bytes(file.bytes), file.seal_path);
    bytes += file.bytes;
  }
  fmt::print("sealed {} in {}\n", format_bytes(bytes), format_seconds(report->seconds));
  return kDone;
}

}  // namespace

void add_seal(CLI::App& app, Action& action) {
  auto settings = std::make_shared<Settings>();
  CLI::App* const command =
      app.add_subcommand("seal", "Write a seal beside each file: the checksums that --verify and verify use");
  add_source(*command, settings->source);
  command
      ->add_option("--seal-dir", settings->seal.directory, "Write the seals there; for repositories that are read-only")
      ->type_name("DIR");
  command->add_flag("--replace", settings->seal.replace,
                    "Replace seals that differ: the files were changed on purpose");
  add_common(*command, settings->common);
  set_examples(*command,
               "  infercluster seal ./model\n"
               "  infercluster seal /read-only/model --seal-dir ~/seals\n"
               "  infercluster seal ./model --replace                   # after the files were changed on purpose\n");
  command->callback([settings, &action] { action = [settings] { return run(*settings); }; });
}

}  // namespace infercluster::cli
