// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/staging.h"

#include <algorithm>
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

struct DeviceItem {
  int device = -1;
  StridedCopy copy;
};

// What of the header and the state lies in a window.
struct Items {
  std::vector<StridedCopy> on_host;
  std::vector<DeviceItem> on_devices;
};

// Live pieces are copied at once. `next`: the first placement that does not end before the window; moved on to the next
// one's.
Result<Items> items_of(Layout& layout, const State& state, const ImageWindow& window, std::size_t& next) {
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
      IC_CHECK(copy_live_part(placement, source, window, layout.chunks[i]));
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
  std::size_t next = 0;           // placement
  std::shared_ptr<Arrival> last;  // behind it all copies are done: streams work in order
  for (std::uint64_t begin = 0; begin < layout.bytes; begin += window_max) {
    const Clock::TimePoint asked = steady_clock().now();
    ImageWindow window(begin, std::min(window_max, layout.bytes - begin));
    IC_TRY(window.snapshot, arenas.acquire(align_up(window.bytes, memory::kArenaAlignment), pin_for));
    const Clock::TimePoint acquired = steady_clock().now();
    IC_TRY(Items items, items_of(layout, state, window, next));
    const Status filled = fill(window, std::move(items), copies.get());
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
