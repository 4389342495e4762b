// SPDX-License-Identifier: Apache-2.0
// The index of a sharded repository (*.safetensors.index.json): which tensor lies in which file. Pure: no I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace infercluster::safetensors {

struct Index {
  std::vector<std::pair<std::string, std::string>> weight_map;  // tensor name, shard file name; in the file's order
  std::optional<std::uint64_t> total_size;                      // metadata.total_size: bytes of all tensors, as claimed

  [[nodiscard]] std::vector<std::string> shards() const;  // each once, sorted
};

// Refuses (code corrupt) what is not JSON, an empty or missing weight_map, a duplicate tensor name, and every shard
// name that is not a plain file name: empty, ".", "..", with "/", "\\" or NUL, or absolute.
Result<Index> parse_index(std::string_view json);

std::string build_index(const Index& index);

}  // namespace infercluster::safetensors
