// SPDX-License-Identifier: Apache-2.0
// infercluster synth
#include "load/synth.h"

#include <fmt/core.h>

#include <cstdio>
#include <memory>

#include "base/clock.h"
#include "base/units.h"
#include "cli/common.h"
#include "cli/output.h"
#include "cli/signals.h"

namespace infercluster::cli {
namespace {

struct Settings {
  std::string directory;
  std::string preset{load::name_of(load::SynthPreset::llama_8b_like)};
  std::optional<std::uint64_t> bytes;
  load::SynthOptions synth;
  Common common;
};

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const auto preset :
       {load::SynthPreset::llama_8b_like, load::SynthPreset::mixture_like, load::SynthPreset::many_small})
    names.emplace_back(name_of(preset));
  return names;
}

int run(const Settings& settings) {
  ProgressLine progress(settings.common, "synth");
  load::SynthOptions options = settings.synth;
  options.preset = load::parse_synth_preset(settings.preset).value_or(options.preset);  // CLI11 has checked it
  options.bytes = settings.bytes.value_or(options.bytes);
  options.progress = [&](load::Progress now) {
    progress.update(now);
    return caught_signal() == 0;
  };
  const Clock::TimePoint start = steady_clock().now();
  const auto report = load::write_synthetic_repository(settings.directory, options);
  progress.finish();
  if (!report.ok()) return fail(settings.common, report.error());
  const double seconds = seconds_between(start, steady_clock().now());
  if (settings.common.json) {
    nlohmann::ordered_json json;
    json["directory"] = settings.directory;
    json["tensors"] = report->tensors;
    json["bytes"] = report->bytes;
    json["file_bytes"] = report->file_bytes;
    json["seconds"] = seconds;
    json["shards"] = report->shards;
    print_json(json);
  } else if (!settings.common.quiet) {
    fmt::print("wrote {} tensors, {} in {} files of weights, to {} in {}\n", report->tensors,
               format_bytes(report->bytes), report->shards.size(), settings.directory, format_seconds(seconds));
  }
  return kDone;
}

}  // namespace

void add_synth(CLI::App& app, Action& action) {
  auto settings = std::make_shared<Settings>();
  CLI::App* const command =
      app.add_subcommand("synth", "Write a realistic repository of random weights, to try loads on");
  command->add_option("DIR", settings->directory, "Where to: a directory that is not there yet, or empty")
      ->required()
      ->type_name("");
  command->add_option("--preset", settings->preset, "What it is like")
      ->check(CLI::IsMember(preset_names()))
      ->capture_default_str();
  add_size(*command, "--bytes", settings->bytes, "Of all tensors (2GiB)");
  command->add_option("--shards", settings->synth.shards, "Files of weights; 0: 4 at least, of 5 GB at most")
      ->type_name("N");
  command->add_option("--seed", settings->synth.seed, "The same seed gives the same bytes")->type_name("N");
  add_common(*command, settings->common);
  set_examples(*command,
               "  infercluster synth /mnt/nvme/try --preset llama-8b-like --bytes 2GiB\n"
               "  infercluster synth try --preset many-small --bytes 100MiB --shards 3 --seed 7\n");
  command->callback([settings, &action] { action = [settings] { return run(*settings); }; });
}

}  // namespace infercluster::cli
