// SPDX-License-Identifier: Apache-2.0
// Any bytes as a repository's index. What must hold: no fault; every shard is the plain name of a file; what parses is
// written again to the same index.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/assert.h"
#include "safetensors/index.h"

namespace infercluster::safetensors {
namespace {

void check(std::string_view json) {
  const Result<Index> index = parse_index(json);
  if (!index.ok()) {
    IC_ASSERT(index.error().code() == ErrorCode::corrupt && !index.error().message().empty());
    return;
  }
  IC_ASSERT(!index->weight_map.empty());
  const std::vector<std::string> shards = index->shards();
  for (const std::string& shard : shards) {
    IC_ASSERT(!shard.empty() && shard != "." && shard != "..");
    for (const char forbidden : {'/', '\\', '\0'}) IC_ASSERT(shard.find(forbidden) == std::string::npos);
  }
  for (const auto& [name, shard] : index->weight_map) {
    IC_ASSERT(std::binary_search(shards.begin(), shards.end(), shard));
  }
  const Result<Index> again = parse_index(build_index(*index));
  IC_ASSERT(again.ok());
  IC_ASSERT(again->weight_map == index->weight_map && again->total_size == index->total_size);
}

}  // namespace
}  // namespace infercluster::safetensors

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Chars are what JSON is made of, and may alias anything.
  infercluster::safetensors::check(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
