// SPDX-License-Identifier: Apache-2.0
// infercluster checkpoint diff
#include <fmt/core.h>

#include <memory>

#include "base/units.h"
#include "cli/checkpoint.h"

namespace infercluster::cli {
namespace {

using checkpoint::Checkpoint;
using checkpoint::Comparison;
using checkpoint::TensorDifference;

constexpr int kSame = 0;  // as diff(1): 1 is an answer here, and no failure
constexpr int kDifferent = 1;
constexpr int kTrouble = 2;

struct Settings {
  std::vector<std::string> roots;    // one or two
  std::vector<std::uint64_t> steps;  // of one root two, of two roots as many at most
  std::optional<std::uint64_t> memory;
  Common common;
};

struct Pair {
  std::unique_ptr<Checkpoint> a;
  std::unique_ptr<Checkpoint> b;
};

Result<Pair> open_both(const Settings& settings) {
  const auto step = [&](std::size_t i) {
    if (settings.steps.empty()) return std::optional<std::uint64_t>();
    return std::optional<std::uint64_t>(settings.steps[std::min(i, settings.steps.size() - 1)]);
  };
  Pair pair;
  IC_TRY(pair.a, checkpoint::open_at(settings.roots.front(), step(0)));
  IC_TRY(pair.b, checkpoint::open_at(settings.roots.back(), step(1)));
  return pair;
}

Result<Comparison> compare(const Settings& settings, const Pair& pair) {
  ProgressLine line(settings.common, "diff");
  checkpoint::CompareOptions options;
  IC_TRY(options.restore, checkpoint::restore_options_from_environment());
  options.window_bytes = settings.memory.value_or(options.window_bytes);
  options.progress = progress_on(line);
  return checkpoint::compare(*pair.a, *pair.b, options);
}

std::string type_text(const checkpoint::StoredTensor& tensor) {
  return std::string(safetensors::name_of(tensor.dtype)) + " " + shape_text(tensor.shape);
}

nlohmann::ordered_json to_json(const Pair& pair, const Comparison& comparison) {
  nlohmann::ordered_json json;
  json["same"] = comparison.same();
  json["a"] = pair.a->path();
  json["b"] = pair.b->path();
  json["equal"] = comparison.equal;
  json["bytes_compared"] = comparison.bytes;
  json["metadata"] = comparison.metadata;
  json["differences"] = nlohmann::ordered_json::array();
  for (const TensorDifference& difference : comparison.differences) {
    nlohmann::ordered_json entry{{"tensor", difference.tensor}, {"kind", name_of(difference.kind)}};
    if (difference.kind == TensorDifference::Kind::type) {
      entry["a"] = type_text(pair.a->tensors().at(difference.tensor));
      entry["b"] = type_text(pair.b->tensors().at(difference.tensor));
    }
    if (difference.kind == TensorDifference::Kind::values) {
      entry["elements"] = difference.elements;
      entry["first"] = difference.first;
    }
    json["differences"].push_back(std::move(entry));
  }
  return json;
}

std::string detail_of(const Pair& pair, const TensorDifference& difference) {
  switch (difference.kind) {
    case TensorDifference::Kind::only_in_a:
      return type_text(pair.a->tensors().at(difference.tensor));
    case TensorDifference::Kind::only_in_b:
      return type_text(pair.b->tensors().at(difference.tensor));
    case TensorDifference::Kind::type:
      return type_text(pair.a->tensors().at(difference.tensor)) + " in A, " +
             type_text(pair.b->tensors().at(difference.tensor)) + " in B";
    case TensorDifference::Kind::values:
      return fmt::format("{} element{} differ{}, the first at {}", difference.elements,
                         difference.elements == 1 ? "" : "s", difference.elements == 1 ? "s" : "",
                         shape_text(difference.first));
  }
  return {};
}

void print(const Pair& pair, const Comparison& comparison) {
  fmt::print("A: {}\nB: {}\n", pair.a->path(), pair.b->path());
  Table table({});
  for (const TensorDifference& difference : comparison.differences)
    table.add({std::string(name_of(difference.kind)), difference.tensor, detail_of(pair, difference)});
  for (const std::string& key : comparison.metadata) table.add({"metadata", key, "other texts, or on one side alone"});
  fmt::print("{}{} tensors equal, {} not; {} keys of the metadata differ; {} compared\n", table.text(),
             comparison.equal, comparison.differences.size(), comparison.metadata.size(),
             format_bytes(comparison.bytes));
}

int trouble(const Settings& settings, const Error& error) {
  const int code = fail(settings.common, error);
  return code == kFailed ? kTrouble : code;
}

int run(const Settings& settings) {
  const auto pair = open_both(settings);
  if (!pair.ok()) return trouble(settings, pair.error());
  const auto comparison = compare(settings, *pair);
  if (!comparison.ok()) return trouble(settings, comparison.error());
  if (settings.common.json)
    print_json(to_json(*pair, *comparison));
  else if (!settings.common.quiet)
    print(*pair, *comparison);
  return comparison->same() ? kSame : kDifferent;
}

void check_usage(const Settings& settings) {
  if (settings.roots.size() == 1 && settings.steps.size() != 2)
    throw CLI::ValidationError("of one ROOT two steps are compared: --step A --step B");
  if (settings.steps.size() > 2) throw CLI::ValidationError("--step is given twice at most");
}

}  // namespace

void add_checkpoint_diff(CLI::App& group, Action& action) {
  auto settings = std::make_shared<Settings>();
  CLI::App* const command = group.add_subcommand(
      "diff", "Compare two checkpoints tensor by tensor, by their bytes, whatever ranks saved them");
  command->add_option("ROOT", settings->roots, "One root, of which two steps are compared, or two roots")
      ->required()
      ->expected(1, 2)
      ->type_name("");
  command->add_option("--step", settings->steps, "Of A and then of B; of two roots one may do, or none: the latest")
      ->allow_extra_args(false)
      ->type_name("N");
  add_size(*command, "--memory", settings->memory, "Window of tensors in memory (256MiB)");
  add_common(*command, settings->common);
  command->footer(
      "\nExit codes: 0 nothing differs, 1 something does, 2 trouble or wrong usage.\n"
      "\nExamples:\n"
      "  infercluster checkpoint diff /lustre/run --step 100 --step 200\n"
      "  infercluster checkpoint diff /lustre/run /lustre/other            # the latest of each\n"
      "  infercluster checkpoint diff /lustre/run /lustre/other --step 100 --json\n");
  command->callback([settings, &action] {
    check_usage(*settings);
    action = [settings] { return run(*settings); };
  });
}

}  // namespace infercluster::cli
