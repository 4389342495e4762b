// SPDX-License-Identifier: Apache-2.0
#include "cli/load_options.h"

#include <charconv>
#include <string_view>

namespace infercluster::cli {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

template <typename Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Error unreadable(const std::string& option, const std::string& text, const std::string& form) {
  return Error(ErrorCode::invalid_argument, option + " \"" + text + "\" cannot be read")
      .with_hint("Write it as " + form);
}

// Usage errors of what CLI11 does not parse itself.
template <typename Value>
CLI::Validator parses(Result<Value> (*parse)(const std::string&)) {
  const auto check = [parse](const std::string& text) {
    const auto value = parse(text);
    return value.ok() ? std::string() : value.error().to_string();
  };
  return {check, ""};
}

}  // namespace

void add_load_options(CLI::App& command, LoadSettings& settings) {
  add_source(command, settings.source);
  command
      .add_option("--names", settings.names, "Only tensors of these names, or that match these patterns (* ? [abc])")
      ->type_name("PATTERN");
  command
      .add_option("--slice", settings.slices,
                  "Parts of tensors: PATTERN=BEGIN:END[,BEGIN:END ...], a range per leading dimension")
      ->type_name("SLICE")
      ->check(parses(parse_slice));
  command
      .add_option("--shard", settings.shards,
                  "One rank's part: [PATTERN=]DIM:RANK:WORLD; a tensor without that dimension is loaded whole")
      ->type_name("SHARD")
      ->check(parses(parse_shard));
  command
      .add_flag("--verify{always}", settings.verify,
                "Check checksums (=auto: where there are some; =always: or fail; =never)")
      ->check(CLI::IsMember({"auto", "always", "never"}));
  command.add_option("--backend", settings.backend, "What reads")->check(CLI::IsMember({"auto", "uring", "threads"}));
  command.add_option("--direct", settings.direct, "Direct I/O")->check(CLI::IsMember({"auto", "always", "never"}));
  command.add_option("--page-cache", settings.page_cache, "Whether the page cache is filled behind a direct load")
      ->check(CLI::IsMember({"auto", "keep", "bypass"}));
  command.add_option("--device", settings.device, "Where the tensors go: cpu, or cuda:N")
      ->type_name("DEVICE")
      ->check(parses(parse_device));
  command.add_option("--gds", settings.gds, "GPUDirect Storage, on a CUDA device")
      ->check(CLI::IsMember({"auto", "always", "never"}));
  add_size(command, "--memory", settings.memory, "Working memory beyond the tensors, at most (32MiB)");
  command.add_option("--seal-dir", settings.seal_directory, "Where the seals lie, when not beside the files")
      ->type_name("DIR");
  command
      .add_option("--latency-target", settings.latency_target,
                  "What 99 of 100 reads may take: checkpoints of this node give way meanwhile, such as 20ms")
      ->type_name("DURATION");
}

Result<load::SliceRule> parse_shard(const std::string& text) {
  load::SliceRule rule;
  const std::size_t equals = text.rfind('=');
  rule.pattern = equals == std::string::npos ? "*" : text.substr(0, equals);
  const auto parts = split(std::string_view(text).substr(equals == std::string::npos ? 0 : equals + 1), ':');
  if (parts.size() == 3) {
    const auto dimension = number<std::uint32_t>(parts[0]);
    const auto rank = number<std::uint32_t>(parts[1]);
    const auto world = number<std::uint32_t>(parts[2]);
    if (dimension && rank && world && *rank < *world) {
      rule.shard = load::Shard{*dimension, *rank, *world, load::Shard::WithoutDimension::whole};
      return rule;
    }
  }
  return unreadable("--shard", text, "DIM:RANK:WORLD with RANK below WORLD, such as 0:3:8");
}

Result<load::SliceRule> parse_slice(const std::string& text) {
  load::SliceRule rule;
  const std::string form = "PATTERN=BEGIN:END,BEGIN:END, such as embed.weight=0:1000";
  const std::size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0) return unreadable("--slice", text, form);
  rule.pattern = text.substr(0, equals);
  for (const std::string_view part : split(std::string_view(text).substr(equals + 1), ',')) {
    const auto ends = split(part, ':');
    if (ends.size() != 2) return unreadable("--slice", text, form);
    const auto begin = number<std::uint64_t>(ends[0]);
    const auto end = number<std::uint64_t>(ends[1]);
    if (!begin || !end || *begin > *end) return unreadable("--slice", text, form);
    rule.ranges.push_back({*begin, *end});
  }
  return rule;
}

Result<std::optional<int>> parse_device(const std::string& text) {
  if (text.empty() || text == "cpu") return std::optional<int>();
  if (text == "cuda") return std::optional<int>(0);
  if (text.starts_with("cuda:")) {
    if (const auto ordinal = number<int>(std::string_view(text).substr(5)); ordinal && *ordinal >= 0) return ordinal;
  }
  return unreadable("--device", text, "cpu or cuda:N, such as cuda:0");
}

Result<load::Options> to_options(const LoadSettings& settings) {
  IC_TRY(load::Options options, options_from_environment());
  options.names = settings.names;
  for (const std::string& text : settings.slices) {
    IC_TRY(load::SliceRule rule, parse_slice(text));
    options.slices.push_back(std::move(rule));
  }
  for (const std::string& text : settings.shards) {
    IC_TRY(load::SliceRule rule, parse_shard(text));
    options.slices.push_back(std::move(rule));
  }
  // The command line's words are those of the environment.
  IC_CHECK(set_option(options, "VERIFY", settings.verify));
  IC_CHECK(set_option(options, "BACKEND", settings.backend));
  IC_CHECK(set_option(options, "DIRECT", settings.direct));
  IC_CHECK(set_option(options, "PAGE_CACHE", settings.page_cache));
  IC_CHECK(set_option(options, "GDS", settings.gds));
  IC_CHECK(set_option(options, "LATENCY_TARGET", settings.latency_target));
  IC_TRY(const std::optional<int> device, parse_device(settings.device));
  if (device) options.device.emplace().ordinal = *device;
  if (settings.memory) options.memory = settings.memory;
  if (!settings.seal_directory.empty()) options.seal_directory = settings.seal_directory;
  return options;
}

}  // namespace infercluster::cli
