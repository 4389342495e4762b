// SPDX-License-Identifier: Apache-2.0
// Compares two checkpoints tensor by tensor, by their bytes, whatever boxes each was saved in.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "checkpoint/restore.h"

namespace infercluster::checkpoint {

// Bytes done and in all; false ends the work: cancelled.
using WorkProgress = std::function<bool(std::uint64_t bytes_done, std::uint64_t bytes_total)>;

struct CompareOptions {
  RestoreOptions restore;
  std::uint64_t window_bytes = 256 * kMiB;  // of tensors of both sides together; the reads in flight come on top
  WorkProgress progress;                    // may be empty
};

struct TensorDifference {
  enum class Kind : std::uint8_t { only_in_a, only_in_b, type, values };
  std::string tensor;
  Kind kind = Kind::values;
  std::uint64_t elements = 0;        // values: that differ; of elements of less than a byte: bytes that differ
  std::vector<std::uint64_t> first;  // values: indices of the first element that differs
};
std::string_view name_of(TensorDifference::Kind kind);

struct Comparison {
  std::vector<TensorDifference> differences;  // by name
  std::vector<std::string> metadata;          // keys of which the ranks of A and of B do not hold the same set of texts
  std::uint64_t equal = 0;                    // tensors
  std::uint64_t bytes = 0;                    // that were compared
  std::uint64_t memory_bytes = 0;             // of both windows

  [[nodiscard]] bool same() const { return differences.empty() && metadata.empty(); }
};

Result<Comparison> compare(const Checkpoint& a, const Checkpoint& b, const CompareOptions& options);

}  // namespace infercluster::checkpoint
