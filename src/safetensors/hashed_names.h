// SPDX-License-Identifier: Apache-2.0
// Names found and told apart in O(n log n) whatever their hashes: names that a hostile file made to collide only cost
// the comparison that sorting them would have cost anyway, which a hash table does not promise.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

namespace infercluster::safetensors {

struct HashedName {
  std::uint64_t hash = 0;
  std::size_t index = 0;  // of the name in the caller's list
};

// `name_at(i)` is the i-th of `count` names. Sorted by (hash, name, index): first into about as many buckets as there
// are names, by the hash's leading bits, then within each bucket, which is short unless hashes were made to collide.
template <typename NameAt>
std::vector<HashedName> hash_names(std::size_t count, NameAt name_at) {
  const int bits = std::max(1, static_cast<int>(std::bit_width(count)));
  std::vector<std::uint64_t> hashes(count);
  std::vector<std::size_t> ends((std::size_t{1} << bits) + 1);  // at first: how many names the bucket before has
  const auto bucket_of = [bits](std::uint64_t hash) { return static_cast<std::size_t>(hash >> (64 - bits)); };
  for (std::size_t i = 0; i < count; ++i) {
    hashes[i] = std::hash<std::string_view>{}(name_at(i));
    ++ends[bucket_of(hashes[i]) + 1];
  }
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  std::vector<HashedName> names(count);
  for (std::size_t i = 0; i < count; ++i) names[ends[bucket_of(hashes[i])]++] = {hashes[i], i};
  const auto before = [&](const HashedName& a, const HashedName& b) {
    if (a.hash != b.hash) return a.hash < b.hash;
    const int order = std::string_view(name_at(a.index)).compare(name_at(b.index));
    return order != 0 ? order < 0 : a.index < b.index;
  };
  for (std::size_t begin = 0, bucket = 0; begin < count; begin = ends[bucket++]) {
    std::sort(names.begin() + static_cast<std::ptrdiff_t>(begin),
              names.begin() + static_cast<std::ptrdiff_t>(ends[bucket]), before);
  }
  return names;
}

// Index of the first of the names equal to `name`.
template <typename NameAt>
std::optional<std::size_t> find_name(const std::vector<HashedName>& names, std::string_view name, NameAt name_at) {
  const std::uint64_t hash = std::hash<std::string_view>{}(name);
  const auto found = std::lower_bound(names.begin(), names.end(), name, [&](const HashedName& a, std::string_view b) {
    return a.hash != hash ? a.hash < hash : std::string_view(name_at(a.index)) < b;
  });
  if (found == names.end() || name_at(found->index) != name) return std::nullopt;
  return found->index;
}

// Index of a name that stands in the list before.
template <typename NameAt>
std::optional<std::size_t> find_duplicate(const std::vector<HashedName>& names, NameAt name_at) {
  for (std::size_t i = 1; i < names.size(); ++i) {
    if (names[i].hash == names[i - 1].hash && name_at(names[i].index) == name_at(names[i - 1].index))
      return names[i].index;
  }
  return std::nullopt;
}

// Indices of the last of each name, ascending: the order of the list less what a later equal name replaces.
template <typename NameAt>
std::vector<std::size_t> last_of_each(const std::vector<HashedName>& names, NameAt name_at) {
  std::vector<std::size_t> last;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool replaced = i + 1 < names.size() && names[i + 1].hash == names[i].hash &&
                          name_at(names[i + 1].index) == name_at(names[i].index);
    if (!replaced) last.push_back(names[i].index);
  }
  std::sort(last.begin(), last.end());
  return last;
}

}  // namespace infercluster::safetensors
