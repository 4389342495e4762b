// SPDX-License-Identifier: Apache-2.0
// What a person sees: text that is emphasised on a terminal, tables, and the progress of long work.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cli/common.h"
#include "cli/signals.h"
#include "load/job.h"

namespace infercluster::cli {

enum class Colour : std::uint8_t { none, bold, green, yellow, red };
// `text` for standard output: coloured when that is a terminal and NO_COLOR is not set.
std::string coloured(Colour colour, std::string_view text);

// Columns padded to their widest cell; the columns in `right` are flush right. Rows may have fewer cells.
class Table {
 public:
  explicit Table(std::vector<std::string> heading, std::vector<std::size_t> right = {});
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  [[nodiscard]] std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> right_;
};

// "1.2 GiB of 4.0 GiB, 30 %, 1.9 GiB/s, 1.5 s left" once bytes have moved.
std::string progress_text(const load::Progress& progress, double seconds);

// On standard error: one line that is rewritten on a terminal, else a line every five seconds; nothing under --quiet,
// and nothing but on a terminal under --json. One thread.
class ProgressLine {
 public:
  ProgressLine(const Common& common, std::string verb);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void update(const load::Progress& progress);
  void finish();  // takes the line away

 private:
  std::string verb_;
  bool terminal_ = false;
  bool silent_ = false;
  bool shown_ = false;
  Clock::TimePoint start_;
  Clock::TimePoint last_;
};

// Opens the source and runs `work(repository, callback)` over it, which returns a Result, under a progress line. A
// signal cancels it.
template <typename Work>
auto with_progress(const SourceOptions& source, const Common& common, const std::string& verb, const Work& work)
    -> decltype(work(std::declval<const load::Repository&>(), ProgressCallback())) {
  IC_TRY(const auto repository, open_source(source));
  ProgressLine line(common, verb);
  auto result = work(*repository, [&line](load::Progress now) {
    line.update(now);
    return caught_signal() == 0;
  });
  line.finish();
  return result;
}

// "[2, 3]".
std::string shape_text(const std::vector<std::uint64_t>& shape);

// "3.4 s", "2 min 5 s".
std::string format_seconds(double seconds);

}  // namespace infercluster::cli
