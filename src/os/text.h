// SPDX-License-Identifier: Apache-2.0
// Cutting the small text files of /proc and /sys apart.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace infercluster::os {

// The non-empty parts of `text` between `separator`s.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = text.find(separator);
    const std::string_view part = text.substr(0, end);
    if (!part.empty()) parts.push_back(part);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return parts;
}

// The decimal number at the start of `text`, after blanks; nullopt when there is none, or it does not fit.
inline std::optional<std::uint64_t> leading_number(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  std::uint64_t number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  if (result.ec != std::errc()) return std::nullopt;
  return number;
}

// The number behind `key` in lines such as "MemTotal:  123 kB" (key "MemTotal:") or "active_file 123" (key
// "active_file").
inline std::optional<std::uint64_t> number_of_key(std::string_view text, std::string_view key) {
  for (const std::string_view line : split(text, '\n')) {
    if (!line.starts_with(key) || line.size() == key.size()) continue;
    const char next = line[key.size()];
    if (next == ' ' || next == '\t') return leading_number(line.substr(key.size()));
  }
  return std::nullopt;
}

}  // namespace infercluster::os
