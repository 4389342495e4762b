// SPDX-License-Identifier: Apache-2.0
// infercluster checkpoint export
#include <fmt/core.h>

#include <memory>

#include "base/clock.h"
#include "base/units.h"
#include "cli/checkpoint.h"
#include "cli/python_tool.h"

namespace infercluster::cli {
namespace {

struct Settings {
  std::string root;
  std::string destination;
  std::string format;
  std::optional<std::uint64_t> step;
  checkpoint::Selection selection;
  std::optional<std::uint64_t> shard_bytes;
  std::optional<std::uint64_t> memory;
  bool merge = false;
  Common common;
};

Result<checkpoint::ExportReport> export_hf(const Settings& settings) {
  IC_TRY(const auto saved, checkpoint::open_at(settings.root, settings.step));
  IC_TRY(const auto tensors, checkpoint::select(*saved, settings.selection));
  ProgressLine line(settings.common, "export");
  checkpoint::ExportOptions options;
  IC_TRY(options.restore, checkpoint::restore_options_from_environment());
  options.shard_bytes = settings.shard_bytes.value_or(options.shard_bytes);
  options.window_bytes = settings.memory.value_or(options.window_bytes);
  options.other_files = settings.merge ? checkpoint::OtherFiles::allow : checkpoint::OtherFiles::refuse;
  options.progress = progress_on(line);
  return checkpoint::export_to(*saved, tensors, settings.destination, options);
}

// dcp and torch: all of the state, plain values too.
int export_by_torch(const Settings& settings) {
  if (!settings.selection.patterns.empty() || !settings.selection.prefix.empty() || settings.shard_bytes ||
      settings.memory || settings.merge) {
    return fail(settings.common, Error(ErrorCode::invalid_argument,
                                       "--only, --prefix, --shard-bytes, --memory and --merge are for "
                                       "--format hf; " +
                                           settings.format + " takes the whole state"));
  }
  std::vector<std::string> words{"export", settings.format, settings.root, settings.destination};
  if (settings.step) words.insert(words.end(), {"--step", std::to_string(*settings.step)});
  return become_python_tool(settings.common, words);
}

nlohmann::ordered_json to_json(const checkpoint::ExportReport& report, double seconds) {
  nlohmann::ordered_json json;
  json["tensors"] = report.tensors;
  json["bytes"] = report.bytes;
  json["bytes_read"] = report.bytes_read;
  json["memory_bytes"] = report.memory_bytes;
  json["seconds"] = seconds;
  std::optional<std::string> index;
  if (!report.index_path.empty()) index = report.index_path;
  json["index"] = or_null(index);
  json["files"] = nlohmann::ordered_json::array();
  for (const checkpoint::ExportReport::File& file : report.files)
    json["files"].push_back({{"path", file.path}, {"bytes", file.bytes}, {"tensors", file.tensors}});
  return json;
}

int run(const Settings& settings) {
  if (settings.format != "hf") return export_by_torch(settings);
  const Clock::TimePoint start = steady_clock().now();
  const auto report = export_hf(settings);
  if (!report.ok()) return fail(settings.common, report.error());
  const double seconds = seconds_between(start, steady_clock().now());
  if (settings.common.json) {
    print_json(to_json(*report, seconds));
  } else if (!settings.common.quiet) {
    for (const checkpoint::ExportReport::File& file : report->files)
      fmt::print("{}  {}  {} tensors\n", file.path, format_bytes(file.bytes), file.tensors);
    if (!report->index_path.empty()) fmt::print("{}\n", report->index_path);
    fmt::print("exported {} tensors, {} in {}\n", report->tensors, format_bytes(report->bytes),
               format_seconds(seconds));
  }
  return kDone;
}

}  // namespace

void add_checkpoint_export(CLI::App& group, Action& action) {
  auto settings = std::make_shared<Settings>();
  CLI::App* const command =
      group.add_subcommand("export", "Write a checkpoint in a stock format, whole tensors whatever ranks saved it");
  add_root(*command, settings->root);
  command
      ->add_option("DEST", settings->destination,
                   "Where to: a directory that is not there yet, or empty (torch: a file)")
      ->required()
      ->type_name("");
  command
      ->add_option("--format", settings->format,
                   "hf: safetensors with an index, as Hugging Face repositories are; dcp: a directory of "
                   "torch.distributed.checkpoint; torch: a file of torch.save (these two need Python with torch, and "
                   "memory for the whole state)")
      ->required()
      ->check(CLI::IsMember({"hf", "dcp", "torch"}));
  add_step(*command, settings->step, "Which step (the latest)");
  command
      ->add_option("--only", settings->selection.patterns, "Only tensors of these names, or that match these patterns")
      ->type_name("PATTERN");
  command->add_option("--prefix", settings->selection.prefix, "Only names that begin with it, which it is taken off")
      ->type_name("TEXT");
  add_size(*command, "--shard-bytes", settings->shard_bytes, "Of tensors in a file (5GB)");
  add_size(*command, "--memory", settings->memory, "Window of tensors in memory (256MiB)");
  command->add_flag("--merge", settings->merge, "DEST may hold other files, such as config.json, but no weights");
  add_common(*command, settings->common);
  set_examples(
      *command,
      "  infercluster checkpoint export /lustre/run ./model --format hf --prefix model.\n"
      "  infercluster checkpoint export /lustre/run ./model --format hf --step 100 --only 'model.*' --merge\n");
  command->callback([settings, &action] { action = [settings] { return run(*settings); }; });
}

}  // namespace infercluster::cli
