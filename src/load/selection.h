// SPDX-License-Identifier: Apache-2.0
// From what a caller asks to the tensors (or parts of them) that are wanted. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "load/options.h"
#include "load/slice.h"
#include "safetensors/header.h"

namespace infercluster::load {

// One tensor of a repository: which shard's header, and which entry of it.
struct TensorRef {
  std::size_t shard = 0;
  std::size_t tensor = 0;
};

// The tables that planning needs, and nothing with a descriptor in it.
struct Tables {
  std::vector<const safetensors::Header*> shards;
  std::vector<TensorRef> tensors;  // by shard, then by offset

  [[nodiscard]] const safetensors::Tensor& tensor(const TensorRef& ref) const {
    return shards[ref.shard]->tensors()[ref.tensor];
  }
};

struct WantedTensor {
  TensorRef ref;
  SlicedTensor part;
  std::optional<memory::Span> destination;  // memory of the caller
};

// In the order of the tables. Refused: a name or pattern that matches nothing (all of them in one message), a slice
// rule that matches nothing, an `into` of an unwanted or unknown tensor, twice the same, with another size than the
// tensor's, or overlapping another.
Result<std::vector<WantedTensor>> select_tensors(const Tables& tables, const Options& options);

// Shell patterns: * ? [abc] [!abc]; a name without these stands for itself. A '\\' takes the next character literally.
bool matches(std::string_view pattern, std::string_view name);

}  // namespace infercluster::load
