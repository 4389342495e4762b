// SPDX-License-Identifier: Apache-2.0
// What the subcommands of `infercluster checkpoint` share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/common.h"
#include "cli/output.h"
#include "infercluster/checkpoint_tools.h"

namespace infercluster::cli {

// The positional ROOT.
CLI::Option* add_root(CLI::App& command, std::string& root);
CLI::Option* add_step(CLI::App& command, std::optional<std::uint64_t>& step, const std::string& description);

// Tells the line, and ends the work at a signal. `line` is borrowed.
checkpoint::WorkProgress progress_on(ProgressLine& line);

// "step-100".
std::string step_text(std::uint64_t step);
// "5 min", of the time between then and now; empty: it is not known.
std::string age_text(const std::optional<std::int64_t>& committed_ns);
// What a step is, in a few words: "durable, verified", "not durable: no commit record", "not durable: ...".
std::string state_text(const checkpoint::ListedStep& step);

template <typename Value>
nlohmann::ordered_json or_null(const std::optional<Value>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}
nlohmann::ordered_json or_null(const std::optional<Error>& error);

// Each adds its subcommand to `group`.
void add_checkpoint_diff(CLI::App& group, Action& action);
void add_checkpoint_drain(CLI::App& group, Action& action);
void add_checkpoint_import(CLI::App& group, Action& action);
void add_checkpoint_export(CLI::App& group, Action& action);
void add_checkpoint_ls(CLI::App& group, Action& action);
void add_checkpoint_prune(CLI::App& group, Action& action);
void add_checkpoint_show(CLI::App& group, Action& action);
void add_checkpoint_verify(CLI::App& group, Action& action);

}  // namespace infercluster::cli
