// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/compare.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "checkpoint/reading.h"
#include "checkpoint/sources.h"
#include "safetensors/header.h"

namespace infercluster::checkpoint {
namespace {

constexpr std::uint64_t kStrideBytes = 64 * kKiB;  // compared at once, until a difference is there

std::vector<std::uint64_t> indices_of(std::uint64_t element, const std::vector<std::uint64_t>& shape) {
  std::vector<std::uint64_t> indices(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    indices[d] = element % shape[d];
    element /= shape[d];
  }
  return indices;
}

// Counts what differs in a part into `difference`.
void compare_part(const WindowedTensor& tensor, const TensorPart& part, const std::byte* a, const std::byte* b,
                  TensorDifference& difference) {
  const std::uint64_t bits = safetensors::bits_of(tensor.dtype);
  const std::uint64_t width = std::max<std::uint64_t>(bits / 8, 1);
  const std::uint64_t stride = kStrideBytes / width * width;
  for (std::uint64_t at = 0; at < part.bytes; at += stride) {
    const std::uint64_t end = std::min(part.bytes, at + stride);
    if (std::memcmp(a + at, b + at, end - at) == 0) continue;
    for (std::uint64_t i = at; i < end; i += width) {
      if (std::memcmp(a + i, b + i, width) == 0) continue;
      if (difference.elements++ == 0) difference.first = indices_of((part.begin + i) * 8 / bits, tensor.shape);
    }
  }
}

std::map<std::string, std::set<std::string>> texts_of(const Checkpoint& checkpoint) {
  std::map<std::string, std::set<std::string>> texts;
  for (const manifest::Index& index : checkpoint.indexes()) {
    for (const auto& [key, value] : index.metadata) {
      if (key != kSourcesKey) texts[key].insert(value);  // where things lie is no part of the state
    }
  }
  return texts;
}

std::vector<std::string> compare_metadata(const Checkpoint& a, const Checkpoint& b) {
  const auto of_a = texts_of(a);
  const auto of_b = texts_of(b);
  std::vector<std::string> keys;
  for (const auto& [key, texts] : of_a) {
    const auto other = of_b.find(key);
    if (other == of_b.end() || other->second != texts) keys.push_back(key);
  }
  for (const auto& [key, texts] : of_b) {
    if (!of_a.contains(key)) keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

// What the tables alone say; the tensors whose values are to be compared.
std::vector<WindowedTensor> compare_tables(const Checkpoint& a, const Checkpoint& b, Comparison& comparison) {
  using Kind = TensorDifference::Kind;
  std::vector<WindowedTensor> common;
  for (const auto& [name, tensor] : a.tensors()) {
    const auto other = b.tensors().find(name);
    if (other == b.tensors().end())
      comparison.differences.push_back({name, Kind::only_in_a, 0, {}});
    else if (other->second.dtype != tensor.dtype || other->second.shape != tensor.shape)
      comparison.differences.push_back({name, Kind::type, 0, {}});
    else
      common.push_back(windowed(a, name));
  }
  for (const auto& [name, tensor] : b.tensors()) {
    if (!a.tensors().contains(name)) comparison.differences.push_back({name, Kind::only_in_b, 0, {}});
  }
  return common;
}

std::uint64_t bytes_of(const std::vector<WindowedTensor>& tensors) {
  std::uint64_t bytes = 0;
  for (const WindowedTensor& tensor : tensors) {
    const auto size = safetensors::tensor_bytes(tensor.dtype, tensor.shape);
    if (size.ok()) bytes += *size;  // checked when the index was read
  }
  return bytes;
}

}  // namespace

std::string_view name_of(TensorDifference::Kind kind) {
  switch (kind) {
    case TensorDifference::Kind::only_in_a:
      return "only in A";
    case TensorDifference::Kind::only_in_b:
      return "only in B";
    case TensorDifference::Kind::type:
      return "dtype or shape";
    case TensorDifference::Kind::values:
      return "values";
  }
  return "";
}

Result<Comparison> compare(const Checkpoint& a, const Checkpoint& b, const CompareOptions& options) {
  Comparison comparison;
  comparison.metadata = compare_metadata(a, b);
  const std::vector<WindowedTensor> common = compare_tables(a, b, comparison);
  const std::uint64_t total = bytes_of(common);
  std::vector<TensorDifference> values(common.size());
  TensorWindows windows(common, options.window_bytes / 2);
  WindowReader reader_a(a, common, options.restore);
  WindowReader reader_b(b, common, options.restore);
  while (true) {
    IC_TRY(const std::optional<TensorWindow> window, windows.next());
    if (!window) break;
    if (options.progress && !options.progress(comparison.bytes, total))
      return Error(ErrorCode::cancelled, "the comparison was cancelled").with_path(a.path());
    IC_TRY(const std::span<const std::byte> of_a, reader_a.read(*window));
    IC_TRY(const std::span<const std::byte> of_b, reader_b.read(*window));
    std::uint64_t at = 0;
    for (const TensorPart& part : window->parts) {
      compare_part(common[part.tensor], part, of_a.data() + at, of_b.data() + at, values[part.tensor]);
      at += part.bytes;
    }
    comparison.bytes += window->bytes;
  }
  for (std::size_t i = 0; i < common.size(); ++i) {
    if (values[i].elements == 0) {
      ++comparison.equal;
      continue;
    }
    values[i].tensor = common[i].name;
    comparison.differences.push_back(std::move(values[i]));
  }
  std::sort(comparison.differences.begin(), comparison.differences.end(),
            [](const TensorDifference& x, const TensorDifference& y) { return x.tensor < y.tensor; });
  comparison.memory_bytes = reader_a.memory_bytes() + reader_b.memory_bytes();
  return comparison;
}

}  // namespace infercluster::checkpoint
