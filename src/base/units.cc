// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <cmath>

namespace infercluster {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t factor;
};

constexpr std::array<Unit, 18> kUnits{{{"", 1},
                                       {"B", 1},
                                       {"K", kKiB},
                                       {"KiB", kKiB},
                                       {"M", kMiB},
                                       {"MiB", kMiB},
                                       {"G", kGiB},
                                       {"GiB", kGiB},
                                       {"T", 1024 * kGiB},
                                       {"TiB", 1024 * kGiB},
                                       {"KB", 1000},
                                       {"MB", 1000ULL * 1000},
                                       {"GB", 1000ULL * 1000 * 1000},
                                       {"TB", 1000ULL * 1000 * 1000 * 1000},
                                       {"kB", 1000},
                                       {"k", kKiB},
                                       {"m", kMiB},
                                       {"g", kGiB}}};

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (bytes < kKiB) return fmt::format("{} B", bytes);
  if (bytes < kMiB) return fmt::format("{:.1f} KiB", value / static_cast<double>(kKiB));
  if (bytes < kGiB) return fmt::format("{:.1f} MiB", value / static_cast<double>(kMiB));
  return fmt::format("{:.2f} GiB", value / static_cast<double>(kGiB));
}

std::string format_rate(double bytes_per_second) {
  if (!(bytes_per_second > 0)) return "0 B/s";
  if (bytes_per_second < static_cast<double>(kGiB)) {
    return fmt::format("{:.1f} MiB/s", bytes_per_second / static_cast<double>(kMiB));
  }
  return fmt::format("{:.2f} GiB/s", bytes_per_second / static_cast<double>(kGiB));
}

Result<std::uint64_t> parse_bytes(std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    return Error(ErrorCode::invalid_argument, fmt::format("\"{}\" is not a size: {}", text, why))
        .with_hint("Write a number of bytes, or a number with KiB, MiB, GiB or TiB");
  };
  double number = 0;
  if (text.empty() || text.front() < '0' || text.front() > '9') return refuse("it does not start with a digit");
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc()) return refuse("the number cannot be read");
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  for (const Unit& known : kUnits) {
    if (known.name != unit) continue;
    std::uint64_t whole = 0;
    const auto [whole_end, whole_error] = std::from_chars(text.data(), end, whole);
    if (whole_error == std::errc() && whole_end == end && whole <= UINT64_MAX / known.factor) {
      return whole * known.factor;
    }
    const double bytes = number * static_cast<double>(known.factor);
    if (!(bytes < 9.0e18)) return refuse("it is too large");
    return static_cast<std::uint64_t>(std::llround(bytes));
  }
  return refuse("the unit is unknown");
}

}  // namespace infercluster
