// SPDX-License-Identifier: Apache-2.0
#include "cli/output.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/units.h"

namespace infercluster::cli {
namespace {

constexpr std::chrono::milliseconds kTerminalInterval{100};
constexpr std::chrono::seconds kPlainInterval{5};
constexpr std::string_view kEraseLine = "\r\x1b[K";

bool wants_colour() {
  const char* no_colour = std::getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) == 1 && (no_colour == nullptr || *no_colour == '\0');
}

// Columns on a terminal: code points, near enough for names of files and tensors.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

std::string coloured(Colour colour, std::string_view text) {
  static const bool enabled = wants_colour();
  const char* code = "";
  switch (colour) {
    case Colour::none:
      break;
    case Colour::bold:
      code = "\x1b[1m";
      break;
    case Colour::green:
      code = "\x1b[32m";
      break;
    case Colour::yellow:
      code = "\x1b[33m";
      break;
    case Colour::red:
      code = "\x1b[31m";
      break;
  }
  if (!enabled || *code == '\0') return std::string(text);
  return fmt::format("{}{}\x1b[0m", code, text);
}

Table::Table(std::vector<std::string> heading, std::vector<std::size_t> right) : right_(std::move(right)) {
  if (!heading.empty()) rows_.push_back(std::move(heading));
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - width_of(row[i]), ' ');
      const bool right = std::find(right_.begin(), right_.end(), i) != right_.end();
      line += (i == 0 ? "" : "  ") + (right ? padding + row[i] : row[i] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string text;
  for (const std::uint64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

std::string format_seconds(double seconds) {
  if (seconds < 10) return fmt::format("{:.2f} s", seconds);
  if (seconds < 120) return fmt::format("{:.0f} s", seconds);
  return fmt::format("{} min {} s", static_cast<long>(seconds) / 60, static_cast<long>(seconds) % 60);
}

std::string progress_text(const load::Progress& progress, double seconds) {
  std::string text = fmt::format("{} of {}", format_bytes(progress.bytes_done), format_bytes(progress.bytes_total));
  if (progress.bytes_total > 0) {
    text += fmt::format(", {:.0f} %",
                        100.0 * static_cast<double>(progress.bytes_done) / static_cast<double>(progress.bytes_total));
  }
  if (progress.bytes_done == 0 || !(seconds > 0)) return text;
  const double rate = static_cast<double>(progress.bytes_done) / seconds;
  const auto left = static_cast<double>(progress.bytes_total - std::min(progress.bytes_total, progress.bytes_done));
  return text + fmt::format(", {}, {} left", format_rate(rate), format_seconds(left / rate));
}

ProgressLine::ProgressLine(const Common& common, std::string verb)
    : verb_(std::move(verb)), terminal_(isatty(STDERR_FILENO) == 1), start_(steady_clock().now()), last_(start_) {
  silent_ = common.quiet || (common.json && !terminal_);
}

ProgressLine::~ProgressLine() {
  finish();
}

void ProgressLine::update(const load::Progress& progress) {
  const auto now = steady_clock().now();
  if (silent_ || now - last_ < (terminal_ ? Clock::Duration(kTerminalInterval) : Clock::Duration(kPlainInterval)))
    return;
  last_ = now;
  const std::string text = progress_text(progress, seconds_between(start_, now));
  if (terminal_) {
    std::fprintf(stderr, "%s%s: %s", std::string(kEraseLine).c_str(), verb_.c_str(), text.c_str());
  } else {
    std::fprintf(stderr, "infercluster: %s: %s\n", verb_.c_str(), text.c_str());
  }
  std::fflush(stderr);
  shown_ = true;
}

void ProgressLine::finish() {
  if (shown_ && terminal_) std::fprintf(stderr, "%s", std::string(kEraseLine).c_str());
  shown_ = false;
}

}  // namespace infercluster::cli
