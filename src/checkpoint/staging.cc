// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/staging.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "checkpoint/live_copy.h"
#include "checkpoint/strided_copy.h"

namespace infercluster::checkpoint {
namespace {

constexpr auto kPatience = std::chrono::seconds(1);  // with a piece that keeps changing

// Pieces that share a counter, as far as they lie in a window.
struct LivePage {
  std::vector<std::size_t> placements;
  std::vector<LiveRange> ranges;
};

// Live pages of a window, and what was copied of them in the windows before.
class LivePages {
 public:
  void add(std::size_t placement, const std::uint64_t* counter, LiveRange range) {
    const auto [found, fresh] = position_.try_emplace(counter, pages_.size());
    if (fresh) {
      pages_.emplace_back();
      counters_.push_back(counter);
    }
    pages_[found->second].placements.push_back(placement);
    pages_[found->second].ranges.push_back(range);
  }

  // Puts down the generations. All parts of a page must be of one, those of earlier windows too.
  Status copy(Layout& layout, const State& state) {
    std::mutex mutex;
    Status first;
    std::vector<std::uint64_t> copied(pages_.size());
    in_parallel(pages_.size(), [&](std::uint64_t i) {
      const auto generation = copy_live(pages_[i].ranges, *counters_[i], kPatience);
      if (generation.ok()) {
        copied[i] = *generation;
        return;
      }
      const std::lock_guard lock(mutex);
      if (first.ok()) first = Error(generation.error()).with_tensor(layout.chunks[pages_[i].placements[0]].tensor);
    });
    IC_CHECK(first);
    for (std::size_t i = 0; i < pages_.size(); ++i) {
      const auto [before, fresh] = copied_.try_emplace(counters_[i], copied[i]);
      if (!fresh && before->second != copied[i]) {
        return Error(ErrorCode::changed, "it changed between two waves of the copy, and they would not belong together")
            .with_tensor(state.pieces[layout.placements[pages_[i].placements[0]].piece].piece.tensor)
            .with_hint("Give the checkpointer an arena that holds the whole state");
      }
      for (const std::size_t placement : pages_[i].placements) layout.chunks[placement].generation = copied[i];
    }
    pages_.clear();
    counters_.clear();
    position_.clear();
    return {};
  }

 private:
  std::vector<LivePage> pages_;
  std::vector<const std::uint64_t*> counters_;                      // of pages_
  std::unordered_map<const std::uint64_t*, std::size_t> position_;  // of a counter in pages_
  std::unordered_map<const std::uint64_t*, std::uint64_t> copied_;  // generations, of all windows until now
};

struct DeviceItem {
  int device = -1;
  StridedCopy copy;
};

// What of the header and the state lies in a window.
struct Items {
  std::vector<StridedCopy> on_host;
  std::vector<DeviceItem> on_devices;
};

// Live pieces go to `live`. `next`: the first placement that does not end before the window; moved on to the next
// one's.
Result<Items> items_of(const Layout& layout, const State& state, const ImageWindow& window, std::size_t& next,
                       LivePages& live) {
  const std::uint64_t end = window.begin + window.bytes;
  std::byte* to = window.snapshot.memory().data();
  Items items;
  const auto add = [&](const HostPiece& source, StridedCopy copy) {
    if (source.device < 0)
      items.on_host.push_back(std::move(copy));
    else
      items.on_devices.push_back({source.device, std::move(copy)});
  };
  const auto add_run = [&](const HostPiece& source, std::uint64_t begin, std::uint64_t bytes) {
    const std::uint64_t first = std::max(begin, window.begin);
    const std::uint64_t last = std::min(begin + bytes, end);
    if (first < last) add(source, {source.data + (first - begin), to + (first - window.begin), last - first, {}});
  };
  HostPiece header;
  header.data = reinterpret_cast<const std::byte*>(layout.header.data());
  add_run(header, 0, layout.header.size());
  for (std::size_t i = next; i < layout.placements.size() && layout.placements[i].begin < end; ++i) {
    const Placement& placement = layout.placements[i];
    const HostPiece& source = state.pieces[placement.piece];
    if (source.live_generation != nullptr) {
      const std::uint64_t first = std::max(placement.begin, window.begin);
      const std::uint64_t last = std::min(placement.begin + placement.bytes, end);
      if (first < last) {
        const LiveRange range{source.data + (first - placement.begin), to + (first - window.begin), last - first};
        live.add(i, source.live_generation, range);
      }
    } else if (source.strides.empty()) {
      add_run(source, placement.begin, placement.bytes);
    } else {
      IC_TRY(const auto box, BoxCopy::between(layout.chunks[i], source.piece.box, source.strides));
      if (box) {
        for (const BoxCopy::Part& part : box->parts(window.begin, end))
          add(source, from_memory(part, source.data, to, window.begin));
      }
    }
    if (placement.begin + placement.bytes <= end) next = i + 1;
  }
  return items;
}

// The devices that the segment's bytes come from, opened; null: none.
Result<std::shared_ptr<DeviceCopies>> open_devices(const Layout& layout, const State& state,
                                                   std::shared_ptr<gpu::Device>& any) {
  std::shared_ptr<DeviceCopies> copies;
  for (const Placement& placement : layout.placements) {
    const int ordinal = state.pieces[placement.piece].device;
    if (ordinal < 0 || placement.bytes == 0) continue;
    if (copies == nullptr) copies = DeviceCopies::make(state.streams);
    IC_TRY(any, copies->open(ordinal));
  }
  return copies;
}

// Begins the copies from devices, and makes those on the host meanwhile.
Status fill(ImageWindow& window, Items items, DeviceCopies* copies) {
  for (const DeviceItem& item : items.on_devices)
    IC_CHECK(copies->copy(item.device, DeviceCopies::Direction::to_host, item.copy));
  if (!items.on_devices.empty()) {
    IC_TRY(window.arrival, copies->arrival());
  }
  copy_all(std::move(items.on_host));
  return {};
}

// What the caller has to wait for; null: nothing.
Result<std::shared_ptr<Arrival>> push_windows(Layout& layout, const State& state, Wait wait, SnapshotArenas& arenas,
                                              ImageWindows& image, SaveReport& report) {
  std::shared_ptr<gpu::Device> pin_for;
  IC_TRY(const std::shared_ptr<DeviceCopies> copies, open_devices(layout, state, pin_for));
  const std::uint64_t window_max = arenas.window_bytes();
  std::size_t next = 0;  // placement
  LivePages live;
  std::shared_ptr<Arrival> last;  // behind it all copies are done: streams work in order
  for (std::uint64_t begin = 0; begin < layout.bytes; begin += window_max) {
    const Clock::TimePoint asked = steady_clock().now();
    ImageWindow window(begin, std::min(window_max, layout.bytes - begin));
    IC_TRY(window.snapshot, arenas.acquire(align_up(window.bytes, memory::kArenaAlignment), pin_for));
    const Clock::TimePoint acquired = steady_clock().now();
    IC_TRY(Items items, items_of(layout, state, window, next, live));
    Status filled = fill(window, std::move(items), copies.get());
    if (filled.ok()) filled = live.copy(layout, state);
    if (!filled.ok()) {
      if (copies != nullptr) static_cast<void>(copies->drain());  // before the window goes
      return filled.error();
    }
    report.arena_wait_seconds += seconds_between(asked, acquired);
    report.copy_seconds += seconds_between(acquired, steady_clock().now());
    ++report.waves;
    if (window.arrival != nullptr) last = window.arrival;  // the writer's, so that both are told the same
    image.push(std::move(window));
  }
  if (last == nullptr || wait != Wait::until_queued) return last;
  const Status held = copies->hold_callers_back();
  if (held.ok()) return std::shared_ptr<Arrival>();
  log_warning("the caller waits for the copies itself: " + held.error().to_string());
  return last;
}

}  // namespace

Status check_source(const HostPiece& source) {
  IC_CHECK(check_strides(source.piece, source.strides, MemoryUse::read));
  return source.device < 0 ? Status() : check_device_strides(source.piece, source.strides);
}

Status stage(Layout& layout, const State& state, Wait wait, SnapshotArenas& arenas, ImageWindows& image,
             SaveReport& report) {
  IC_TRY(const std::shared_ptr<Arrival> arrival, push_windows(layout, state, wait, arenas, image, report));
  if (arrival == nullptr) return {};
  const Clock::TimePoint begin = steady_clock().now();
  IC_CHECK(arrival->wait());
  report.copy_seconds += seconds_between(begin, steady_clock().now());
  return {};
}

}  // namespace infercluster::checkpoint
