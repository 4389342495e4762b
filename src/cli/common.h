// SPDX-License-Identifier: Apache-2.0
// What the subcommands share: their common options, how they end, and how an error is shown.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/result.h"
#include "infercluster/infercluster.h"

namespace infercluster::cli {

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kWrongUsage = 2;

struct Common {
  bool json = false;   // one document on standard output, and nothing else there
  bool quiet = false;  // no progress, no summary
};
void add_common(CLI::App& command, Common& common);

// The positional PATH, and how it is opened.
struct SourceOptions {
  std::string path;
  std::string revision;
  std::string compatibility = "strict";
  bool allow_trailing_bytes = false;
};
void add_source(CLI::App& command, SourceOptions& source);
Result<std::shared_ptr<const load::Repository>> open_source(const SourceOptions& source);

// An option that takes a size such as 512MiB; what is no size is wrong usage. `bytes` stays unset when the option is
// not given.
CLI::Option* add_size(CLI::App& command, const std::string& name, std::optional<std::uint64_t>& bytes,
                      const std::string& description);

// What the chosen subcommand does; its result is the exit code.
using Action = std::function<int()>;

// Shows the error: as {"error": {...}} on standard output under --json, and as a line on standard error in any case.
// Returns the exit code: 1, and 128 + N when it is a cancellation by signal N.
int fail(const Common& common, const Error& error);
nlohmann::ordered_json to_json(const Error& error);

void print_json(const nlohmann::ordered_json& document);

// The examples at the end of a command's help.
void set_examples(CLI::App& command, const std::string& examples);

// Each adds its subcommand to `app`, and sets `action` when it was chosen.
void add_checkpoint(CLI::App& app, Action& action);
void add_completion(CLI::App& app, Action& action);
void add_doctor(CLI::App& app, Action& action);
void add_initiator(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_load(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);
void add_seal(CLI::App& app, Action& action);
void add_synth(CLI::App& app, Action& action);
void add_target(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);

}  // namespace infercluster::cli
