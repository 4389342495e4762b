// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/sources.h"

#include <algorithm>
#include <charconv>

namespace infercluster::checkpoint {
namespace {

// All ranks of a large job have such a text: beside indexes of some 70 KiB each, it must not weigh.
constexpr std::size_t kTextBytesMax = 4096;

// A number at the beginning of `text`, which it leaves; below `end`.
std::optional<std::uint64_t> take_number(std::string_view& text, std::uint64_t end) {
  std::uint64_t number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number >= end) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(rest - text.data()));
  return number;
}

std::optional<std::vector<std::uint64_t>> decode(std::string_view text, std::uint64_t world) {
  std::vector<std::uint64_t> ranks;
  while (true) {
    const auto first = take_number(text, world);
    if (!first || (!ranks.empty() && *first <= ranks.back())) return std::nullopt;
    std::uint64_t last = *first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      const auto end = take_number(text, world);
      if (!end || *end <= *first) return std::nullopt;
      last = *end;
    }
    for (std::uint64_t rank = *first; rank <= last; ++rank) ranks.push_back(rank);
    if (text.empty()) return ranks;
    if (!text.starts_with(',')) return std::nullopt;
    text.remove_prefix(1);
  }
}

}  // namespace

std::optional<std::string> encode_sources(const std::vector<std::uint64_t>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size() && text.size() <= kTextBytesMax;) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text += (text.empty() ? "" : ",") + std::to_string(ranks[i]);
    if (end - i > 1) text += "-" + std::to_string(ranks[end - 1]);
    i = end;
  }
  return text.size() <= kTextBytesMax ? std::optional<std::string>(std::move(text)) : std::nullopt;
}

std::optional<std::vector<std::uint64_t>> sources_in(const manifest::Index& index, std::uint64_t world) {
  const auto found = std::ranges::find(index.metadata, kSourcesKey,
                                       [](const auto& entry) -> const std::string& { return entry.first; });
  return found == index.metadata.end() ? std::nullopt : decode(found->second, world);
}

}  // namespace infercluster::checkpoint
