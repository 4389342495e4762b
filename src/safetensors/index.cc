// SPDX-License-Identifier: Apache-2.0
#include "safetensors/index.h"

#include <algorithm>

#include "safetensors/hashed_names.h"
#include "safetensors/json_internal.h"

namespace infercluster::safetensors {
namespace {

using simdjson::dom::element;

constexpr std::size_t kFileNameBytesMax = 255;  // NAME_MAX

Error index_error(std::string message) {
  return Error(ErrorCode::corrupt, std::move(message));
}

bool is_plain_file_name(std::string_view name) {
  using namespace std::string_view_literals;
  return !name.empty() && name.size() <= kFileNameBytesMax && name != "." && name != ".." &&
         name.find_first_of("/\\\0"sv) == std::string_view::npos;
}

Status read_weight_map(element value, Index& index) {
  simdjson::dom::object object;
  if (value.get(object) != simdjson::SUCCESS) return index_error("the index's weight_map is not an object");
  index.weight_map.reserve(object.size());
  for (const auto [name, file] : object) {
    std::string_view shard;
    if (file.get(shard) != simdjson::SUCCESS) {
      return index_error("the index gives no file name to tensor " + json::quoted(name));
    }
    if (!is_plain_file_name(shard)) {
      return index_error("the index puts tensor " + json::quoted(name) + " into " + json::quoted(shard) +
                         ", which is not the plain name of a file in the same folder")
          .with_hint("Files outside the model's folder are never opened: do not trust this index");
    }
    index.weight_map.emplace_back(name, shard);
  }
  if (index.weight_map.empty()) return index_error("the index's weight_map is empty");
  const auto name_at = [&index](std::size_t i) -> const std::string& { return index.weight_map[i].first; };
  if (const auto twice = find_duplicate(hash_names(index.weight_map.size(), name_at), name_at)) {
    return index_error("the index has the duplicate name " + json::quoted(name_at(*twice)));
  }
  return {};
}

// Some writers leave a float; anything else that is no size counts as not given: it is a claim, not a rule.
std::optional<std::uint64_t> read_total_size(element metadata) {
  element value;
  if (metadata.at_key("total_size").get(value) != simdjson::SUCCESS) return std::nullopt;
  std::uint64_t size = 0;
  if (json::read_integer(value, size)) return size;
  double number = 0;
  if (value.get(number) != simdjson::SUCCESS || !(number >= 0 && number < 0x1p63)) return std::nullopt;
  return static_cast<std::uint64_t>(number);
}

}  // namespace

std::vector<std::string> Index::shards() const {
  std::vector<std::string> names;
  names.reserve(weight_map.size());
  for (const auto& [tensor, shard] : weight_map) names.push_back(shard);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

Result<Index> parse_index(std::string_view text) {
  simdjson::dom::parser parser;
  Result<element> root = json::parse(text, json::Padding::none, parser);
  if (!root) {
    if (root.error().code() == ErrorCode::out_of_memory) return std::move(root).error();
    return index_error("the index is " + root.error().message()).with_hint("Download the index again");
  }
  simdjson::dom::object object;
  if (root->get(object) != simdjson::SUCCESS) return index_error("the index is not a JSON object");
  Index index;
  bool has_map = false;
  bool has_metadata = false;
  for (const auto [key, value] : object) {
    bool* const seen = key == "weight_map" ? &has_map : key == "metadata" ? &has_metadata : nullptr;
    if (seen == nullptr) continue;
    if (*seen) return index_error("the index has the duplicate field " + json::quoted(key));
    *seen = true;
    if (seen == &has_map) IC_CHECK(read_weight_map(value, index));
    if (seen == &has_metadata) index.total_size = read_total_size(value);
  }
  if (!has_map) return index_error("the index has no weight_map");
  return index;
}

std::string build_index(const Index& index) {
  std::string out = "{\n";
  if (index.total_size)
    out += "  \"metadata\": {\n    \"total_size\": " + std::to_string(*index.total_size) + "\n  },\n";
  out += "  \"weight_map\": {";
  const char* separator = "\n";
  for (const auto& [name, shard] : index.weight_map) {
    out += separator;
    out += "    ";
    json::append_string(out, name);
    out += ": ";
    json::append_string(out, shard);
    separator = ",\n";
  }
  out += "\n  }\n}\n";
  return out;
}

}  // namespace infercluster::safetensors
