// SPDX-License-Identifier: Apache-2.0
// infercluster verify
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
  std::string seal_directory;
  Common common;
};

nlohmann::ordered_json to_json(const VerifyReport& report) {
  nlohmann::ordered_json json;
  json["good"] = report.good();
  json["bytes"] = report.bytes;
  json["seconds"] = report.seconds;
  json["hint"] = report.hint;
  json["files"] = nlohmann::ordered_json::array();
  for (const VerifyReport::File& file : report.files) {
    json["files"].push_back(
        {{"path", file.path}, {"method", file.method}, {"good", file.good}, {"message", file.message}});
  }
  return json;
}

void print(const VerifyReport& report) {
  for (const VerifyReport::File& file : report.files) {
    const bool unknown = file.method == "none";
    const std::string state = file.good ? coloured(Colour::green, "good")
                                        : coloured(unknown ? Colour::yellow : Colour::red, unknown ? "????" : "BAD ");
    fmt::print("{}  {}  {}\n", state, file.path, file.good ? "by " + file.method : file.message);
  }
  fmt::print("{} in {}: {}\n", format_bytes(report.bytes), format_seconds(report.seconds),
             format_rate(report.seconds > 0 ? static_cast<double>(report.bytes) / report.seconds : 0));
}

// What to do about bad files: only these, and nothing was touched.
void explain(const VerifyReport& report) {
  std::string bad;
  std::size_t bad_files = 0;
  std::size_t unknown_files = 0;
  for (const VerifyReport::File& file : report.files) {
    if (file.good) continue;
    if (file.method == "none") {
      ++unknown_files;
      continue;
    }
    ++bad_files;
    bad += "\n  " + file.path + ": " + file.message;
  }
  if (bad_files > 0) {
    fmt::print(stderr, "infercluster: error: {} of {} files bad:{}\n{}\n", bad_files, report.files.size(), bad,
               report.hint);
  }
  if (unknown_files > 0) {
    fmt::print(stderr,
               "infercluster: error: {} of {} files cannot be verified: no seal, and no name that is a SHA-256. Seal "
               "files that you trust with `infercluster "
               "seal`.\n",
               unknown_files, report.files.size());
  }
}

int run(const Settings& settings) {
  const auto report = with_progress(settings.source, settings.common, "verify",
                                    [&](const load::Repository& repository, const ProgressCallback& callback) {
                                      return verify(repository, settings.seal_directory, callback);
                                    });
  if (!report.ok()) return fail(settings.common, report.error());
  if (settings.common.json) {
    print_json(to_json(*report));
  } else if (!settings.common.quiet) {
    print(*report);
  }
  if (report->good()) return kDone;
  explain(*report);
  return kFailed;
}

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  auto settings = std::make_shared<Settings>();
  CLI::App* const command =
      app.add_subcommand("verify", "Check every byte against seals, or the SHA-256 that names a cache's blobs");
  add_source(*command, settings->source);
  command->add_option("--seal-dir", settings->seal_directory, "Where the seals lie, when not beside the files")
      ->type_name("DIR");
  add_common(*command, settings->common);
  set_examples(*command,
               "  infercluster verify ./model\n"
               "  infercluster verify org/name                          # blobs of the Hugging Face cache\n"
               "  infercluster verify /read-only/model --seal-dir ~/seals --json\n");
  command->callback([settings, &action] { action = [settings] { return run(*settings); }; });
}

}  // namespace infercluster::cli
