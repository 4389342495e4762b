// SPDX-License-Identifier: Apache-2.0
// infercluster inspect
#include <fmt/core.h>

#include <cstdio>
#include <map>
#include <memory>

#include "base/units.h"
#include "cli/common.h"
#include "cli/output.h"
#include "load/selection.h"

namespace infercluster::cli {
namespace {

struct Settings {
  SourceOptions source;
  std::vector<std::string> names;
  bool summary = false;
  Common common;
};

struct Total {
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
};
using Totals = std::map<std::string, Total>;

bool is_shown(const Settings& settings, const std::string& name) {
  for (const std::string& pattern : settings.names) {
    if (load::matches(pattern, name)) return true;
  }
  return settings.names.empty();
}

std::vector<load::TensorRef> shown_tensors(const Settings& settings, const load::Repository& repository) {
  std::vector<load::TensorRef> shown;
  for (const load::TensorRef& ref : repository.tables().tensors) {
    if (is_shown(settings, repository.tensor(ref).name)) shown.push_back(ref);
  }
  return shown;
}

Totals totals_of(const load::Repository& repository, const std::vector<load::TensorRef>& refs) {
  Totals totals;
  for (const load::TensorRef& ref : refs) {
    Total& total = totals[std::string(safetensors::name_of(repository.tensor(ref).dtype))];
    ++total.tensors;
    total.bytes += repository.tensor(ref).bytes();
  }
  return totals;
}

nlohmann::ordered_json to_json(const load::Repository& repository, const std::vector<load::TensorRef>& refs,
                               bool summary) {
  nlohmann::ordered_json json;
  json["path"] = repository.path();
  json["commit"] = repository.commit;
  json["files"] = nlohmann::ordered_json::array();
  for (const load::RepositoryShard& shard : repository.shards()) {
    json["files"].push_back({{"path", shard.path},
                             {"bytes", shard.identity.size},
                             {"data_begin", shard.header.data_begin()},
                             {"tensors", shard.header.tensors().size()}});
  }
  Total sum;
  json["dtypes"] = nlohmann::ordered_json::object();
  for (const auto& [dtype, total] : totals_of(repository, refs)) {
    json["dtypes"][dtype] = {{"tensors", total.tensors}, {"bytes", total.bytes}};
    sum.tensors += total.tensors;
    sum.bytes += total.bytes;
  }
  json["tensor_count"] = sum.tensors;
  json["bytes"] = sum.bytes;
  json["metadata"] = nlohmann::ordered_json::object();
  for (const auto& [key, value] : repository.metadata()) json["metadata"][key] = value;
  json["warnings"] = repository.warnings;
  if (summary) return json;
  json["tensors"] = nlohmann::ordered_json::array();
  for (const load::TensorRef& ref : refs) {
    const safetensors::Tensor& tensor = repository.tensor(ref);
    const load::RepositoryShard& shard = repository.shards()[ref.shard];
    json["tensors"].push_back({{"name", tensor.name},
                               {"dtype", safetensors::name_of(tensor.dtype)},
                               {"shape", tensor.shape},
                               {"bytes", tensor.bytes()},
                               {"file", shard.path},
                               {"offset", shard.header.data_begin() + tensor.begin}});
  }
  return json;
}

void print(const load::Repository& repository, const std::vector<load::TensorRef>& refs, bool summary) {
  if (!summary) {
    Table table({"TENSOR", "DTYPE", "SHAPE", "SIZE", "FILE"}, {3});
    for (const load::TensorRef& ref : refs) {
      const safetensors::Tensor& tensor = repository.tensor(ref);
      const std::string& path = repository.shards()[ref.shard].path;
      table.add({tensor.name, std::string(safetensors::name_of(tensor.dtype)), shape_text(tensor.shape),
                 format_bytes(tensor.bytes()), path.substr(path.rfind('/') + 1)});
    }
    fmt::print("{}\n", table.text());
  }
  Total sum;
  Table dtypes({"DTYPE", "TENSORS", "SIZE"}, {1, 2});
  for (const auto& [dtype, total] : totals_of(repository, refs)) {
    dtypes.add({dtype, std::to_string(total.tensors), format_bytes(total.bytes)});
    sum.tensors += total.tensors;
    sum.bytes += total.bytes;
  }
  dtypes.add({"all", std::to_string(sum.tensors), format_bytes(sum.bytes)});
  fmt::print("{}\n{} in {} file{}{}\n", dtypes.text(), repository.path(), repository.shards().size(),
             repository.shards().size() == 1 ? "" : "s",
             repository.commit.empty() ? "" : ", commit " + repository.commit);
  for (const auto& [key, value] : repository.metadata()) fmt::print("metadata {}: {}\n", key, value);
  for (const std::string& warning : repository.warnings)
    fmt::print("{}: {}\n", coloured(Colour::yellow, "warning"), warning);
}

int run(const Settings& settings) {
  const auto repository = open_source(settings.source);
  if (!repository.ok()) return fail(settings.common, repository.error());
  const auto refs = shown_tensors(settings, **repository);
  if (refs.empty() && !settings.names.empty())
    return fail(settings.common,
                Error(ErrorCode::not_found, "no tensor has one of these names").with_path(settings.source.path));
  if (settings.common.json) {
    print_json(to_json(**repository, refs, settings.summary));
  } else if (!settings.common.quiet) {
    print(**repository, refs, settings.summary);
  }
  return kDone;
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  auto settings = std::make_shared<Settings>();
  CLI::App* const command =
      app.add_subcommand("inspect", "Show tensors, dtypes, shapes and metadata; reads headers only");
  add_source(*command, settings->source);
  command->add_option("--names", settings->names, "Only tensors of these names, or that match these patterns")
      ->type_name("PATTERN");
  command->add_flag("--summary", settings->summary, "Totals only");
  add_common(*command, settings->common);
  set_examples(*command,
               "  infercluster inspect model.safetensors\n"
               "  infercluster inspect org/name --summary\n"
               "  infercluster inspect ./model --names '*.bias' --json\n");
  command->callback([settings, &action] { action = [settings] { return run(*settings); }; });
}

}  // namespace infercluster::cli
