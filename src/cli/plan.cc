// SPDX-License-Identifier: Apache-2.0
// infercluster plan
#include <fmt/core.h>

#include <cstdio>
#include <memory>
#include <optional>

#include "base/units.h"
#include "cli/common.h"
#include "cli/load_options.h"
#include "cli/output.h"

namespace infercluster::cli {
namespace {

constexpr std::uint32_t kWorldMax = 65'536;

struct Settings : LoadSettings {
  Common common;
  std::uint32_t world = 1;
  std::optional<std::uint32_t> rank;
  std::uint32_t dimension = 0;
  bool no_probe = false;
};

struct RankPlan {
  std::uint32_t rank = 0;
  PlanSummary summary;
};

Result<std::vector<RankPlan>> plan_ranks(const Settings& settings) {
  IC_TRY(load::Options options, to_options(settings));
  if (settings.rank && *settings.rank >= settings.world) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("rank {} is not one of {} ranks", *settings.rank, settings.world))
        .with_hint("Ranks count from 0");
  }
  IC_TRY(const auto repository, open_source(settings.source));
  if (settings.world > 1) options.slices.push_back({"*", {}, load::Shard{}});
  std::vector<RankPlan> plans;
  const std::uint32_t first = settings.rank.value_or(0);
  const std::uint32_t last = settings.rank ? first + 1 : settings.world;
  double rate = 0;
  for (std::uint32_t rank = first; rank < last; ++rank) {
    if (settings.world > 1) {
      options.slices.back().shard =
          load::Shard{settings.dimension, rank, settings.world, load::Shard::WithoutDimension::whole};
    }
    // One probe is enough: the ranks read the same files.
    IC_TRY(PlanSummary summary,
           plan(*repository, options, rank == first && !settings.no_probe ? Probe::yes : Probe::no));
    if (rank == first) rate = summary.predicted_rate;
    summary.predicted_rate = rate;
    if (rate > 0) summary.predicted_seconds = static_cast<double>(summary.bytes_read) / rate;
    plans.push_back({rank, std::move(summary)});
  }
  return plans;
}

nlohmann::ordered_json to_json(const RankPlan& plan) {
  const PlanSummary& summary = plan.summary;
  nlohmann::ordered_json json;
  json["rank"] = plan.rank;
  json["tensors"] = summary.tensors;
  json["bytes"] = summary.bytes_wanted;
  json["bytes_read"] = summary.bytes_read;
  json["requests"] = summary.requests;
  json["memory_bytes"] = summary.memory_bytes;
  json["working_bytes"] = summary.working_bytes;
  json["moved_bytes"] = summary.bytes_to_move;
  json["predicted_seconds"] =
      summary.predicted_rate > 0 ? nlohmann::ordered_json(summary.predicted_seconds) : nlohmann::ordered_json(nullptr);
  json["files"] = nlohmann::ordered_json::array();
  for (const PlannedFile& file : summary.files) {
    json["files"].push_back({{"path", file.path},
                             {"bytes", file.bytes_wanted},
                             {"bytes_read", file.bytes_read},
                             {"requests", file.requests},
                             {"mode", file.mode},
                             {"reason", file.reason}});
  }
  return json;
}

void print(const Settings& settings, const std::vector<RankPlan>& plans) {
  Table ranks({"RANK", "TENSORS", "BYTES", "READ", "REQUESTS", "MEMORY", "BEYOND", "MOVED", "PREDICTED"},
              {0, 1, 2, 3, 4, 5, 6, 7, 8});
  for (const auto& [rank, summary] : plans) {
    ranks.add({std::to_string(rank), std::to_string(summary.tensors), format_bytes(summary.bytes_wanted),
               format_bytes(summary.bytes_read), std::to_string(summary.requests), format_bytes(summary.memory_bytes),
               format_bytes(summary.working_bytes), format_bytes(summary.bytes_to_move),
               summary.predicted_rate > 0 ? format_seconds(summary.predicted_seconds) : "-"});
  }
  fmt::print("{}", ranks.text());
  if (plans.front().summary.predicted_rate > 0) {
    fmt::print("predicted for a rank that reads alone, at {} as probed now\n",
               format_rate(plans.front().summary.predicted_rate));
  }
  if (settings.world > 1 && !settings.rank) return;
  Table files({"FILE", "BYTES", "READ", "REQUESTS", "MODE", "WHY"}, {1, 2, 3});
  for (const PlannedFile& file : plans.front().summary.files) {
    files.add({file.path.substr(file.path.rfind('/') + 1), format_bytes(file.bytes_wanted),
               format_bytes(file.bytes_read), std::to_string(file.requests), file.mode, file.reason});
  }
  fmt::print("\n{}", files.text());
}

int run(const Settings& settings) {
  const auto plans = plan_ranks(settings);
  if (!plans.ok()) return fail(settings.common, plans.error());
  if (settings.common.json) {
    nlohmann::ordered_json json;
    json["world"] = settings.world;
    json["dimension"] = settings.dimension;
    const double rate = plans->front().summary.predicted_rate;
    json["probed_bytes_per_s"] = rate > 0 ? nlohmann::ordered_json(rate) : nlohmann::ordered_json(nullptr);
    json["ranks"] = nlohmann::ordered_json::array();
    for (const RankPlan& plan : *plans) json["ranks"].push_back(to_json(plan));
    print_json(json);
  } else if (!settings.common.quiet) {
    print(settings, *plans);
  }
  return kDone;
}

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  auto settings = std::make_shared<Settings>();
  CLI::App* const command =
      app.add_subcommand("plan", "Say what a load would read, need and take, before anything is allocated");
  add_load_options(*command, *settings);
  command->add_option("--world", settings->world, "Number of ranks that share the tensors")
      ->check(CLI::Range(std::uint32_t{1}, kWorldMax));
  command->add_option("--rank", settings->rank, "Only this rank");
  command->add_option("--dim", settings->dimension,
                      "The dimension that is cut; tensors without it are whole on every rank");
  command->add_flag("--no-probe", settings->no_probe, "Do not read up to 64 MiB to predict the time");
  add_common(*command, settings->common);
  set_examples(*command,
               "  infercluster plan ./model\n"
               "  infercluster plan org/name --world 8                  # bytes per rank\n"
               "  infercluster plan ./model --world 8 --rank 3 --dim 1 --json\n");
  command->callback([settings, &action] { action = [settings] { return run(*settings); }; });
}

}  // namespace infercluster::cli
