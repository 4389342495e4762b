// SPDX-License-Identifier: Apache-2.0
// The options that `load` and `plan` have in common.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/common.h"
#include "load/options.h"

namespace infercluster::cli {

struct LoadSettings {
  SourceOptions source;
  std::vector<std::string> names;
  std::vector<std::string> slices;
  std::vector<std::string> shards;
  std::string verify;  // empty: as the environment says; so below
  std::string backend;
  std::string direct;
  std::string page_cache;
  std::string device;
  std::string gds;
  std::optional<std::uint64_t> memory;
  std::string seal_directory;
  std::string latency_target;
};

void add_load_options(CLI::App& command, LoadSettings& settings);

// The environment's options, changed by what the command line says.
Result<load::Options> to_options(const LoadSettings& settings);

// "cpu" (nothing) or "cuda:N".
Result<std::optional<int>> parse_device(const std::string& text);
// "DIM:RANK:WORLD" for all tensors, or "PATTERN=DIM:RANK:WORLD". A tensor without that dimension is loaded whole.
Result<load::SliceRule> parse_shard(const std::string& text);
// "PATTERN=BEGIN:END[,BEGIN:END ...]", one range per leading dimension.
Result<load::SliceRule> parse_slice(const std::string& text);

}  // namespace infercluster::cli
