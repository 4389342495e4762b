// SPDX-License-Identifier: Apache-2.0
#include "cli/common.h"

#include <cstdio>

#include "base/units.h"
#include "cli/signals.h"

namespace infercluster::cli {

void add_common(CLI::App& command, Common& common) {
  command.add_flag("--json", common.json, "Print one JSON document on standard output");
  command.add_flag("-q,--quiet", common.quiet, "Print errors only");
}

void add_source(CLI::App& command, SourceOptions& source) {
  command
      .add_option("PATH", source.path,
                  "A .safetensors file, a directory, a Hugging Face cache folder, or a repository id (org/name) that "
                  "the cache has")
      ->required()
      ->type_name("");
  command.add_option("--revision", source.revision, "Revision of a repository in the Hugging Face cache (main)")
      ->type_name("NAME");
  command
      .add_option("--compat", source.compatibility,
                  "Which headers are accepted; reference: all that safetensors 0.8 accepts")
      ->check(CLI::IsMember({"strict", "reference"}));
  command.add_flag("--allow-trailing-bytes", source.allow_trailing_bytes,
                   "Accept bytes behind the last tensor of a file");
}

Result<std::shared_ptr<const load::Repository>> open_source(const SourceOptions& source) {
  OpenOptions options;
  options.revision = source.revision;
  options.allow_trailing_bytes = source.allow_trailing_bytes;
  if (source.compatibility == "reference") options.compatibility = safetensors::Compatibility::reference;
  return open(source.path, options);
}

CLI::Option* add_size(CLI::App& command, const std::string& name, std::optional<std::uint64_t>& bytes,
                      const std::string& description) {
  const auto parse = [&bytes](const std::string& text) {
    const auto size = parse_bytes(text);
    if (!size.ok()) throw CLI::ValidationError(size.error().to_string());  // CLI11's way to say: wrong usage
    bytes = *size;
  };
  return command.add_option_function<std::string>(name, parse, description)->type_name("SIZE");
}

nlohmann::ordered_json to_json(const Error& error) {
  nlohmann::ordered_json json;
  json["code"] = name_of(error.code());
  json["message"] = error.message();
  if (!error.kind().empty()) json["kind"] = error.kind();
  if (!error.path().empty()) json["path"] = error.path();
  if (!error.tensor().empty()) json["tensor"] = error.tensor();
  if (error.offset()) json["offset"] = *error.offset();
  if (error.system_errno() != 0) json["errno"] = error.system_errno();
  if (!error.hint().empty()) json["hint"] = error.hint();
  json["text"] = error.to_string();
  return json;
}

int fail(const Common& common, const Error& error) {
  if (common.json) print_json({{"error", to_json(error)}});
  std::fprintf(stderr, "infercluster: error: %s\n", error.to_string().c_str());
  const int signal = caught_signal();
  return error.code() == ErrorCode::cancelled && signal != 0 ? 128 + signal : kFailed;
}

void print_json(const nlohmann::ordered_json& document) {
  // Names in files are whatever they are: bytes that are not UTF-8 are replaced rather than refused.
  const std::string text = document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
}

void set_examples(CLI::App& command, const std::string& examples) {
  command.footer("\nExamples:\n" + examples);
}

}  // namespace infercluster::cli
