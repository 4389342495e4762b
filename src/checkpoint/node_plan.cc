// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/node_plan.h"

#include <algorithm>
#include <set>

#include "base/units.h"
#include "exchange/wire.h"

namespace infercluster::checkpoint {
namespace {

using Ranks = std::vector<std::size_t>;  // ascending

// Less than this is read together with its neighbour: a request of its own costs a device as much as more bytes would.
constexpr std::uint64_t kSmallBytes = 512 * kKiB;

struct Run {
  Window window;
  Ranks wanting;
  [[nodiscard]] std::uint64_t bytes() const { return window.end - window.begin; }
};

// Of one segment: wherever somebody's blocks begin or end, cut.
std::vector<Run> runs_of(const std::vector<const std::vector<Window>*>& wanted) {
  std::set<std::uint64_t> bounds;
  for (const auto* windows : wanted) {
    if (windows == nullptr) continue;
    for (const Window& window : *windows) {
      bounds.insert(window.begin);
      bounds.insert(window.end);
    }
  }
  std::vector<Run> runs;
  std::vector<std::size_t> next(wanted.size());  // per rank: its first window that does not end before here
  for (auto bound = bounds.begin(); bound != bounds.end() && std::next(bound) != bounds.end(); ++bound) {
    Run run{{*bound, *std::next(bound)}, {}};
    for (std::size_t rank = 0; rank < wanted.size(); ++rank) {
      if (wanted[rank] == nullptr) continue;
      const std::vector<Window>& windows = *wanted[rank];
      while (next[rank] < windows.size() && windows[next[rank]].end <= run.window.begin) ++next[rank];
      if (next[rank] < windows.size() && windows[next[rank]].begin <= run.window.begin) run.wanting.push_back(rank);
    }
    if (!run.wanting.empty()) runs.push_back(std::move(run));
  }
  return runs;
}

// Joins neighbours that are wanted alike, or small, and cuts what is larger than a window.
std::vector<Run> windows_of(const std::vector<Run>& runs, std::uint64_t window_bytes) {
  std::vector<Run> windows;
  for (Run run : runs) {
    if (!windows.empty() && windows.back().window.end == run.window.begin) {
      Run& last = windows.back();
      const bool alike = last.wanting == run.wanting;
      const bool small = std::min(last.bytes(), run.bytes()) < kSmallBytes;
      const bool fits = last.bytes() + run.bytes() <= window_bytes;
      if (alike || (small && fits)) {
        const std::uint64_t taken = std::min(run.bytes(), window_bytes - last.bytes());
        last.window.end += taken;
        run.window.begin += taken;
        Ranks both;
        std::ranges::set_union(last.wanting, run.wanting, std::back_inserter(both));
        last.wanting = std::move(both);
      }
    }
    while (run.bytes() > 0) {
      const std::uint64_t taken = std::min(run.bytes(), window_bytes);
      windows.push_back({{run.window.begin, run.window.begin + taken}, run.wanting});
      run.window.begin += taken;
    }
  }
  return windows;
}

}  // namespace

WantedBlocks wanted_blocks(const std::vector<SegmentReads>& reads) {
  WantedBlocks wanted;
  for (const SegmentReads& of_segment : reads) {
    std::vector<Window>& windows = wanted[of_segment.id];
    for (const Window& window : of_segment.windows) {
      if (!windows.empty() && windows.back().end == window.begin)
        windows.back().end = window.end;
      else
        windows.push_back(window);
    }
  }
  return wanted;
}

std::string encode_wanted(const WantedBlocks& wanted) {
  exchange::Writer out;
  out.number(wanted.size());
  for (const auto& [segment, windows] : wanted) {
    out.number(segment.index);
    out.number(segment.segment);
    out.number(windows.size());
    for (const Window& window : windows) {
      out.number(window.begin);
      out.number(window.end);
    }
  }
  return out.take();
}

Result<WantedBlocks> decode_wanted(std::string_view bytes) {
  exchange::Reader in(bytes);
  WantedBlocks wanted;
  bool sorted = true;
  const std::uint64_t segments = in.number();
  for (std::uint64_t i = 0; i < segments && !in.failed(); ++i) {
    const std::uint64_t index = in.number();
    const std::uint64_t segment = in.number();
    std::vector<Window>& windows = wanted[{index, segment}];
    const std::uint64_t count = in.number();
    for (std::uint64_t k = 0; k < count && !in.failed(); ++k) {
      const std::uint64_t begin = in.number();
      const std::uint64_t end = in.number();
      sorted &= begin < end && (windows.empty() || windows.back().end < begin);
      windows.push_back({begin, end});
    }
  }
  if (in.complete() && sorted && wanted.size() == segments) return wanted;
  return Error(ErrorCode::corrupt, "what another rank wants of the checkpoint cannot be read")
      .with_hint("Do all ranks run the same version?");
}

std::uint64_t NodePlan::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& of_rank : alone) {
    for (const PlannedRead& read : of_rank) sum += read.window.end - read.window.begin;
  }
  for (const SharedRead& read : shared) sum += read.window.end - read.window.begin;
  return sum;
}

NodePlan plan_for_node(const std::vector<WantedBlocks>& wanted, std::uint64_t window_bytes) {
  std::set<SegmentId> segments;
  for (const WantedBlocks& of_rank : wanted) {
    for (const auto& [segment, windows] : of_rank) segments.insert(segment);
  }
  NodePlan plan;
  plan.alone.resize(wanted.size());
  std::vector<std::uint64_t> load(wanted.size());
  for (const SegmentId& segment : segments) {
    std::vector<const std::vector<Window>*> of_segment;
    for (const WantedBlocks& of_rank : wanted) {
      const auto found = of_rank.find(segment);
      of_segment.push_back(found == of_rank.end() ? nullptr : &found->second);
    }
    for (Run& run : windows_of(runs_of(of_segment), window_bytes)) {
      if (run.wanting.size() > 1) {
        plan.shared.push_back({segment, run.window, 0, std::move(run.wanting)});
        continue;
      }
      plan.alone[run.wanting[0]].push_back({segment, run.window});
      load[run.wanting[0]] += run.bytes();
    }
  }
  for (SharedRead& read : plan.shared) {
    read.owner =
        *std::ranges::min_element(read.wanting, [&](std::size_t a, std::size_t b) { return load[a] < load[b]; });
    load[read.owner] += read.window.end - read.window.begin;
  }
  return plan;
}

}  // namespace infercluster::checkpoint
