// SPDX-License-Identifier: Apache-2.0
// infercluster checkpoint show
#include <fmt/core.h>

#include <map>
#include <memory>

#include "base/units.h"
#include "cli/checkpoint.h"

namespace infercluster::cli {
namespace {

using checkpoint::Checkpoint;
using checkpoint::StoredTensor;

struct Settings {
  std::string root;
  std::optional<std::uint64_t> step;
  bool summary = false;
  Common common;
};

struct Total {
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
};

std::uint64_t bytes_of(const Checkpoint& saved, const StoredTensor& tensor) {
  std::uint64_t bytes = 0;
  for (const StoredTensor::Part& part : tensor.parts) bytes += saved.indexes()[part.index].chunks[part.chunk].bytes;
  return bytes;
}

// By the first part of the names, as in "model.layers.0.weight".
std::map<std::string, Total> groups_of(const Checkpoint& saved) {
  std::map<std::string, Total> groups;
  for (const auto& [name, tensor] : saved.tensors()) {
    Total& total = groups[name.substr(0, name.find('.'))];
    ++total.tensors;
    total.bytes += bytes_of(saved, tensor);
  }
  return groups;
}

// Key of the metadata -> how many ranks have it.
std::map<std::string, std::uint64_t> keys_of(const Checkpoint& saved) {
  std::map<std::string, std::uint64_t> keys;
  for (const manifest::Index& index : saved.indexes()) {
    for (const auto& [key, text] : index.metadata) ++keys[key];
  }
  return keys;
}

nlohmann::ordered_json to_json(const Checkpoint& saved, bool summary) {
  const manifest::Commit& commit = saved.commit();
  nlohmann::ordered_json json;
  json["path"] = saved.path();
  json["step"] = commit.step;
  json["epoch"] = commit.epoch;
  json["world"] = commit.world;
  json["save_id"] = commit.save_id;
  json["plan_hash"] = commit.plan_hash;
  json["segments"] = nlohmann::ordered_json::array();
  for (const manifest::Index& index : saved.indexes()) {
    for (const manifest::Segment& segment : index.segments)
      json["segments"].push_back({{"name", segment.name}, {"node", index.node}, {"bytes", segment.bytes}});
  }
  json["metadata"] = nlohmann::ordered_json::array();
  for (const auto& [key, ranks] : keys_of(saved)) json["metadata"].push_back({{"key", key}, {"ranks", ranks}});
  Total sum;
  json["groups"] = nlohmann::ordered_json::object();
  for (const auto& [group, total] : groups_of(saved)) {
    json["groups"][group] = {{"tensors", total.tensors}, {"bytes", total.bytes}};
    sum.tensors += total.tensors;
    sum.bytes += total.bytes;
  }
  json["tensor_count"] = sum.tensors;
  json["bytes"] = sum.bytes;
  if (summary) return json;
  json["tensors"] = nlohmann::ordered_json::array();
  for (const auto& [name, tensor] : saved.tensors()) {
    json["tensors"].push_back({{"name", name},
                               {"dtype", safetensors::name_of(tensor.dtype)},
                               {"shape", tensor.shape},
                               {"chunks", tensor.parts.size()},
                               {"bytes", bytes_of(saved, tensor)}});
  }
  return json;
}

void print(const Checkpoint& saved, bool summary) {
  if (!summary) {
    Table table({"TENSOR", "DTYPE", "SHAPE", "CHUNKS", "SIZE"}, {3, 4});
    for (const auto& [name, tensor] : saved.tensors()) {
      table.add({name, std::string(safetensors::name_of(tensor.dtype)), shape_text(tensor.shape),
                 std::to_string(tensor.parts.size()), format_bytes(bytes_of(saved, tensor))});
    }
    fmt::print("{}\n", table.text());
  }
  Total sum;
  Table groups({"GROUP", "TENSORS", "SIZE"}, {1, 2});
  for (const auto& [group, total] : groups_of(saved)) {
    groups.add({group, std::to_string(total.tensors), format_bytes(total.bytes)});
    sum.tensors += total.tensors;
    sum.bytes += total.bytes;
  }
  groups.add({"all", std::to_string(sum.tensors), format_bytes(sum.bytes)});
  Table segments({"SEGMENT", "SIZE"}, {1});
  for (const manifest::Index& index : saved.indexes()) {
    for (const manifest::Segment& segment : index.segments) segments.add({segment.name, format_bytes(segment.bytes)});
  }
  const manifest::Commit& commit = saved.commit();
  fmt::print("{}\n{}\n", groups.text(), segments.text());
  for (const auto& [key, ranks] : keys_of(saved))
    fmt::print("metadata {}: of {} of {} ranks\n", key, ranks, commit.world);
  fmt::print("{}: step {}, epoch {}, {} rank{}, plan {}\n", saved.path(), commit.step, commit.epoch, commit.world,
             commit.world == 1 ? "" : "s", commit.plan_hash);
}

int run(const Settings& settings) {
  const auto saved = checkpoint::open_at(settings.root, settings.step);
  if (!saved.ok()) return fail(settings.common, saved.error());
  if (settings.common.json)
    print_json(to_json(**saved, settings.summary));
  else if (!settings.common.quiet)
    print(**saved, settings.summary);
  return kDone;
}

}  // namespace

void add_checkpoint_show(CLI::App& group, Action& action) {
  auto settings = std::make_shared<Settings>();
  CLI::App* const command =
      group.add_subcommand("show", "Show tensors, metadata keys and segments of a checkpoint; reads indexes only");
  add_root(*command, settings->root);
  add_step(*command, settings->step, "Which step (the latest)");
  command->add_flag("--summary", settings->summary, "Totals only");
  add_common(*command, settings->common);
  set_examples(*command,
               "  infercluster checkpoint show /lustre/run\n"
               "  infercluster checkpoint show /lustre/run --step 100 --summary\n"
               "  infercluster checkpoint show /lustre/run/step-100 --json\n");
  command->callback([settings, &action] { action = [settings] { return run(*settings); }; });
}

}  // namespace infercluster::cli
