// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/names.h"

#include <algorithm>
#include <charconv>

namespace infercluster::checkpoint {
namespace {

constexpr std::string_view kStep = "step-";
constexpr std::string_view kRank = "rank-";
constexpr std::string_view kNode = "node-";
constexpr std::string_view kMark = ".save-";
constexpr std::string_view kProgress = ".copied-";
constexpr std::string_view kTrash = ".trash-step-";
constexpr std::string_view kTemporary = ".tmp";

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Digits as std::to_string writes them.
std::optional<std::uint64_t> take_number(std::string_view& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const auto length = static_cast<std::size_t>(end - text.data());
  if (error != std::errc{} || (text[0] == '0' && length > 1)) return std::nullopt;
  text.remove_prefix(length);
  return value;
}

bool is_id(std::string_view text) {
  return text.size() == 16 &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::optional<std::uint64_t> epoch_of_node_file(std::string_view name) {
  if (!take(name, kNode) || !take_number(name) || !take(name, ".")) return std::nullopt;
  const auto first = take_number(name);
  if (!first) return std::nullopt;
  if (name == ".index.json") return first;
  if (!take(name, ".")) return std::nullopt;
  const auto second = take_number(name);
  if (!second || name != ".safetensors") return std::nullopt;
  return second;
}

// Writer, segment, epoch and bytes.
struct Progress {
  std::uint64_t node = 0;
  std::uint64_t number = 0;
  std::uint64_t epoch = 0;
  std::uint64_t bytes = 0;
};

std::optional<Progress> parse_progress(std::string_view name) {
  if (!take(name, kProgress)) return std::nullopt;
  const auto node = take_number(name);
  if (!node || !take(name, ".")) return std::nullopt;
  const auto number = take_number(name);
  if (!number || !take(name, ".")) return std::nullopt;
  const auto epoch = take_number(name);
  if (!epoch || !take(name, "-")) return std::nullopt;
  const auto bytes = take_number(name);
  if (!bytes || !name.empty()) return std::nullopt;
  return Progress{*node, *number, *epoch, *bytes};
}

}  // namespace

std::string step_name(std::uint64_t step) {
  return std::string(kStep) + std::to_string(step);
}

std::optional<std::uint64_t> parse_step_name(std::string_view name) {
  if (!take(name, kStep)) return std::nullopt;
  const auto step = take_number(name);
  return name.empty() ? step : std::nullopt;
}

std::string rank_name(std::uint64_t rank) {
  return std::string(kRank) + std::to_string(rank);
}

std::optional<std::uint64_t> parse_rank_name(std::string_view name) {
  if (!take(name, kRank)) return std::nullopt;
  const auto rank = take_number(name);
  return name.empty() ? rank : std::nullopt;
}

std::string segment_name(const WriterFile& writer, std::uint64_t number) {
  return std::string(kNode) + std::to_string(writer.node) + "." + std::to_string(number) + "." +
         std::to_string(writer.epoch) + ".safetensors";
}

std::string index_name(const WriterFile& writer) {
  return std::string(kNode) + std::to_string(writer.node) + "." + std::to_string(writer.epoch) + ".index.json";
}

std::string commit_name(std::uint64_t epoch) {
  return std::string(kCommitName) + "." + std::to_string(epoch);
}

std::string commit_temporary_name(std::uint64_t epoch) {
  return commit_name(epoch) + std::string(kTemporary);
}

std::string mark_name(std::uint64_t epoch, std::string_view save_id) {
  return std::string(kMark) + std::to_string(epoch) + "-" + std::string(save_id);
}

std::string progress_name(const WriterFile& writer, std::uint64_t number, std::uint64_t bytes) {
  return std::string(kProgress) + std::to_string(writer.node) + "." + std::to_string(number) + "." +
         std::to_string(writer.epoch) + "-" + std::to_string(bytes);
}

std::optional<std::uint64_t> parse_progress_name(std::string_view name, const WriterFile& writer,
                                                 std::uint64_t number) {
  const auto found = parse_progress(name);
  if (!found || found->node != writer.node || found->epoch != writer.epoch || found->number != number)
    return std::nullopt;
  return found->bytes;
}

bool is_progress_name(std::string_view name) {
  return parse_progress(name).has_value();
}

std::string trash_name(std::uint64_t step, std::string_view id) {
  return std::string(kTrash) + std::to_string(step) + "-" + std::string(id);
}

bool is_trash_name(std::string_view name) {
  return take(name, kTrash) && take_number(name) && take(name, "-") && is_id(name);
}

std::optional<std::uint64_t> epoch_of_file(std::string_view name) {
  if (const auto epoch = epoch_of_commit(name)) return epoch;
  if (const auto epoch = epoch_of_node_file(name)) return epoch;
  if (const auto progress = parse_progress(name)) return progress->epoch;
  if (name.ends_with(kTemporary) && name != "COMMIT.tmp")
    return epoch_of_commit(name.substr(0, name.size() - kTemporary.size()));
  if (!take(name, kMark)) return std::nullopt;
  const auto epoch = take_number(name);
  return epoch && take(name, "-") && is_id(name) ? epoch : std::nullopt;
}

std::optional<std::uint64_t> epoch_of_commit(std::string_view name) {
  if (!take(name, kCommitName)) return std::nullopt;
  if (name.empty()) return 0;
  if (!take(name, ".")) return std::nullopt;
  const auto epoch = take_number(name);
  return name.empty() ? epoch : std::nullopt;
}

}  // namespace infercluster::checkpoint
