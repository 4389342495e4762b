// SPDX-License-Identifier: Apache-2.0
#include "base/duration.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <cmath>

namespace infercluster {
namespace {

struct Unit {
  std::string_view name;
  double nanoseconds;
};

constexpr std::array<Unit, 6> kUnits{{{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"min", 60e9}, {"h", 3600e9}}};

}  // namespace

Result<std::chrono::nanoseconds> parse_duration(std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    return Error(ErrorCode::invalid_argument, fmt::format("\"{}\" is not a duration: {}", text, why))
        .with_hint("Write a number with its unit: ns, us, ms, s, min or h");
  };
  double number = 0;
  if (text.empty() || text.front() < '0' || text.front() > '9') return refuse("it does not start with a digit");
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc()) return refuse("the number cannot be read");
  std::string_view name = text.substr(static_cast<std::size_t>(end - text.data()));
  while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
  for (const Unit& unit : kUnits) {
    if (unit.name != name) continue;
    const double nanoseconds = number * unit.nanoseconds;
    if (!(nanoseconds < 9.0e18)) return refuse("it is too long");
    return std::chrono::nanoseconds(std::llround(nanoseconds));
  }
  return refuse(name.empty() ? "it has no unit" : "the unit is unknown");
}

}  // namespace infercluster
