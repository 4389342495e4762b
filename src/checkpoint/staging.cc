// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/staging.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "checkpoint/live_copy.h"
#include "checkpoint/strided_copy.h"

namespace infercluster::checkpoint {
namespace {

constexpr auto kPatience = std::chrono::seconds(1);  // with a piece that keeps changing

// The part of a live piece that lies in the window. Its parts in earlier windows must be of the same generation.
Status copy_live_part(const Placement& placement, const HostPiece& source, const ImageWindow& window,
                      manifest::Chunk& chunk) {
  const std::uint64_t first = std::max(placement.begin, window.begin);
  const std::uint64_t last = std::min(placement.begin + placement.bytes, window.begin + window.bytes);
  if (first >= last) return {};
  const auto copied =
      copy_live(source.data + (first - placement.begin), window.snapshot.memory().data() + (first - window.begin),
                last - first, *source.live_generation, kPatience);
  if (!copied.ok()) return Error(copied.error()).with_tensor(source.piece.tensor);
  if (first > placement.begin && chunk.generation != *copied) {
    return Error(ErrorCode::changed, "it changed between two waves of the copy, and they would not belong together")
        .with_tensor(source.piece.tensor)
        .with_hint("Give the checkpointer an arena that holds the whole state");
  }
  chunk.generation = *copied;
  return {};
}

// What of the header and the state lies in the window; live pieces are copied at once. `next`: the first placement that
// does not end before it.
Result<std::vector<StridedCopy>> items_of(Layout& layout, const State& state, const ImageWindow& window,
                                          std::size_t& next) {
  const std::uint64_t end = window.begin + window.bytes;
  std::byte* to = window.snapshot.memory().data();
  std::vector<StridedCopy> items;
  const auto add = [&](const std::byte* from, std::uint64_t begin, std::uint64_t bytes) {
    const std::uint64_t first = std::max(begin, window.begin);
    const std::uint64_t last = std::min(begin + bytes, end);
    if (first < last) items.push_back({from + (first - begin), to + (first - window.begin), last - first, {}});
  };
  add(reinterpret_cast<const std::byte*>(layout.header.data()), 0, layout.header.size());
  for (std::size_t i = next; i < layout.placements.size() && layout.placements[i].begin < end; ++i) {
    const Placement& placement = layout.placements[i];
    const HostPiece& source = state.pieces[placement.piece];
    if (source.live_generation != nullptr) {
      IC_CHECK(copy_live_part(placement, source, window, layout.chunks[i]));
    } else if (source.strides.empty()) {
      add(source.data, placement.begin, placement.bytes);
    } else {
      IC_TRY(const auto box, BoxCopy::between(layout.chunks[i], source.piece.box, source.strides));
      if (box) {
        for (const BoxCopy::Part& part : box->parts(window.begin, end))
          items.push_back(from_memory(part, source.data, to, window.begin));
      }
    }
    if (placement.begin + placement.bytes <= end) next = i + 1;
  }
  return items;
}

}  // namespace

Status stage(Layout& layout, const State& state, SnapshotArenas& arenas, ImageWindows& image, SaveReport& report) {
  const std::uint64_t window_max = arenas.window_bytes();
  std::size_t next = 0;  // placement
  for (std::uint64_t begin = 0; begin < layout.bytes; begin += window_max) {
    const Clock::TimePoint asked = steady_clock().now();
    ImageWindow window{begin, std::min(window_max, layout.bytes - begin), {}};
    IC_TRY(window.snapshot, arenas.acquire(align_up(window.bytes, memory::kArenaAlignment)));
    const Clock::TimePoint acquired = steady_clock().now();
    IC_TRY(auto items, items_of(layout, state, window, next));
    copy_all(std::move(items));
    report.arena_wait_seconds += seconds_between(asked, acquired);
    report.copy_seconds += seconds_between(acquired, steady_clock().now());
    ++report.waves;
    image.push(std::move(window));
  }
  return {};
}

}  // namespace infercluster::checkpoint
