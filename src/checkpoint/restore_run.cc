// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/restore_run.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <optional>

#include "checksum/crc32c.h"
#include "gpu/memory.h"
#include "io/engine.h"
#include "memory/arena.h"

namespace infercluster::checkpoint {
namespace {

using namespace std::chrono_literals;
using manifest::kBlockBytes;

constexpr unsigned kWindows = 8;  // in flight: enough for an NVMe device's speed
constexpr Clock::Duration kForever = 24h;
constexpr Clock::Duration kWatch = 100ms;  // between two looks at the other ranks
// How long to wait for one kind of event while another may come.
constexpr Clock::Duration kPause = 500us;

class RestoreRun {
 public:
  RestoreRun(const Checkpoint& checkpoint, std::vector<SegmentReads> segments, const RestoreOptions& options,
             const NodeShare* share)
      : checkpoint_(checkpoint), segments_(std::move(segments)), options_(options), share_(share) {}

  Status run() {
    plan();
    const auto slots = std::min<std::uint64_t>(alone_.size(), kWindows);
    if (slots > 0) {
      IC_TRY(memory_, memory::Arena::allocate(slots * kWindowBytes));
    }
    for (unsigned i = 0; i < slots; ++i) slots_[i].memory = memory_->data() + i * kWindowBytes;
    IC_CHECK(open_devices());
    IC_TRY(io::ChosenBackend backend, io::open_backend(options_.backend));
    io::Engine engine(std::move(backend.backend), steady_clock(), io::Engine::Options{});
    Status done = pump(engine);
    if (!done.ok()) engine.cancel();
    std::array<io::Event, kWindows> events;
    while (engine.active() > 0) engine.poll(events, kForever);
    const Status copied = copies_ == nullptr ? Status() : copies_->drain();
    return done.ok() ? copied : done;
  }

  [[nodiscard]] const RestoreReport& report() const { return report_; }

 private:
  // By this rank.
  struct Read {
    std::size_t segment = 0;
    Window window;
    std::optional<std::uint64_t> shared;  // its number among the node's shared reads
  };
  // A segment while its windows are read.
  struct Open {
    std::unique_ptr<io::FileSource> source;
    io::SourceSet set;
    Window range;
    std::size_t windows_left = 0;
  };
  struct Slot {
    std::byte* memory = nullptr;  // its own, for what this rank alone wants; null: it has none
    std::byte* bytes = nullptr;   // where its read goes
    Read read;
    bool reading = false;
    std::shared_ptr<Arrival> arrival;  // of its copies to devices; null: there are none under way
  };
  // A shared buffer that is copied to devices.
  struct Held {
    std::uint64_t number = 0;
    std::shared_ptr<Arrival> arrival;
  };

  void plan() {
    open_.resize(segments_.size());
    if (share_ == nullptr) {
      for (std::size_t i = 0; i < segments_.size(); ++i) {
        for (const Window& window : segments_[i].windows) add(alone_, {i, window, std::nullopt});
      }
      return;
    }
    std::map<SegmentId, std::size_t> by_id;
    for (std::size_t i = 0; i < segments_.size(); ++i) by_id[segments_[i].id] = i;
    const NodePlan& plan = *share_->plan;
    for (const PlannedRead& read : plan.alone[share_->self])
      add(alone_, {by_id.at(read.segment), read.window, std::nullopt});
    for (std::uint64_t number = 0; number < plan.shared.size(); ++number) {
      const SharedRead& read = plan.shared[number];
      if (!std::ranges::binary_search(read.wanting, share_->self)) continue;
      const Read own{by_id.at(read.segment), read.window, number};
      if (read.owner == share_->self)
        add(for_all_, own);
      else
        others_.push_back(own);
    }
  }

  void add(std::deque<Read>& queue, const Read& read) {
    Open& open = open_[read.segment];
    if (open.windows_left++ == 0) open.range = read.window;
    open.range = {std::min(open.range.begin, read.window.begin), std::max(open.range.end, read.window.end)};
    queue.push_back(read);
  }

  // Only those that targets lie on.
  Status open_devices() {
    for (const SegmentReads& reads : segments_) {
      for (const TargetCopy& copy : reads.copies) {
        if (copy.target->device < 0) continue;
        if (copies_ == nullptr) copies_ = DeviceCopies::make(options_.streams);
        IC_TRY(const std::shared_ptr<gpu::Device> device, copies_->open(copy.target->device));
        if (!pinned_.empty()) continue;
        if (memory_ != nullptr) {
          for (std::uint64_t step = 0; step < memory_->steps(); ++step) IC_CHECK(memory_->populate_step(step));
          IC_CHECK(pin(device, memory_->span()));
        }
        if (share_ != nullptr && share_->ring != nullptr) IC_CHECK(pin(device, share_->ring_memory));
      }
    }
    return {};
  }
  Status pin(const std::shared_ptr<gpu::Device>& device, const memory::Span& span) {
    IC_TRY(std::unique_ptr<gpu::Pinned> pinned, gpu::Pinned::make(device, span));
    pinned_.push_back(std::move(pinned));
    return {};
  }

  Status pump(io::Engine& engine) {
    while (true) {
      const std::uint32_t seen = ring() == nullptr ? 0 : ring()->changes();
      IC_CHECK(submit_what_may(engine));
      IC_CHECK(take_what_is_there());
      IC_CHECK(release_what_passed());
      if (engine.active() == 0 && alone_.empty() && for_all_.empty() && others_.empty() && held_.empty()) return {};
      IC_CHECK(look_around());
      IC_CHECK(wait(engine, seen));
    }
  }

  [[nodiscard]] const SharedRing* ring() const { return share_ == nullptr ? nullptr : share_->ring; }

  // What others wait for goes first.
  Status submit_what_may(io::Engine& engine) {
    for (unsigned i = kWindows; i-- > 0 && !for_all_.empty();) {
      if (!ring()->may_fill(*for_all_.front().shared)) break;
      IC_TRY(const bool free, is_free(slots_[i]));
      if (!free) continue;
      slots_[i].bytes = ring()->buffer(*for_all_.front().shared);
      IC_CHECK(submit(engine, i, for_all_));
    }
    for (unsigned i = 0; i < kWindows && !alone_.empty() && slots_[i].memory != nullptr; ++i) {
      IC_TRY(const bool free, is_free(slots_[i]));
      if (!free) continue;
      slots_[i].bytes = slots_[i].memory;
      IC_CHECK(submit(engine, i, alone_));
    }
    return {};
  }

  static Result<bool> is_free(Slot& slot) {
    if (slot.reading) return false;
    if (slot.arrival == nullptr) return true;
    IC_TRY(const bool passed, slot.arrival->passed());
    if (passed) slot.arrival.reset();
    return passed;
  }

  Status submit(io::Engine& engine, unsigned number, std::deque<Read>& queue) {
    const Read read = queue.front();
    Open& open = open_[read.segment];
    if (open.source == nullptr) IC_CHECK(open_segment(open, segments_[read.segment]));
    // A resident or buffered file has no alignment; a direct one may be asked for bytes beyond its end.
    const std::uint64_t length = align_up(read.window.end - read.window.begin, open.source->alignment());
    const io::Transfer transfer{.token = number,
                                .sources = &open.set,
                                .offset = read.window.begin,
                                .length = static_cast<std::uint32_t>(length),
                                .end_of_data = read.window.end,
                                .memory = slots_[number].bytes,
                                .priority = io::Priority::foreground,
                                .hedge_after = std::nullopt};
    IC_ASSERT(engine.submit(transfer));  // no more than kWindows, which every backend takes
    slots_[number].read = read;
    slots_[number].reading = true;
    queue.pop_front();
    return {};
  }

  Status open_segment(Open& open, const SegmentReads& reads) {
    const std::string path = checkpoint_.path_of(reads.id.index, *reads.segment);
    io::FileSource::Options options;
    options.direct = options_.direct;
    options.begin = open.range.begin;
    options.end = open.range.end;
    IC_TRY(open.source, io::FileSource::open(path, nullptr, options));
    if (open.source->size() != reads.segment->bytes) {
      return Error(ErrorCode::corrupt, "expected " + std::to_string(reads.segment->bytes) + " bytes, found " +
                                           std::to_string(open.source->size()))
          .with_path(path);
    }
    open.set = {open.source.get()};
    ++report_.segments;
    return {};
  }

  Status wait(io::Engine& engine, std::uint32_t seen) {
    const bool others_may_act = !others_.empty() || !for_all_.empty();
    if (engine.active() > 0) {
      std::array<io::Event, kWindows> events;
      const std::size_t count = engine.poll(events, others_may_act || !held_.empty() ? kPause : longest_wait());
      for (std::size_t i = 0; i < count; ++i) IC_CHECK(take(events[i]));
      return {};
    }
    if (others_may_act) {
      ring()->wait(seen, held_.empty() ? longest_wait() : kPause);
      return {};
    }
    if (!held_.empty()) return held_.front().arrival->wait();
    const auto busy = std::ranges::find_if(slots_, [](const Slot& slot) { return slot.arrival != nullptr; });
    return busy == slots_.end() ? Status() : busy->arrival->wait();
  }
  [[nodiscard]] Clock::Duration longest_wait() const { return share_ == nullptr ? kForever : kWatch; }

  Status look_around() {
    if (share_ == nullptr) return {};
    const Clock::TimePoint now = steady_clock().now();
    if (now < next_look_) return {};
    next_look_ = now + kWatch;
    IC_CHECK(share_->watch());
    if (now < share_->deadline) return {};
    return Error(ErrorCode::timed_out, "the ranks of this node did not restore together in time")
        .with_hint("A rank that hangs, or storage that does, holds all of them up");
  }

  Status take(const io::Event& event) {
    if (event.error) return *event.error;
    Slot& slot = slots_[event.token];
    if (event.kind == io::Event::Kind::delivered) {
      IC_CHECK(verify(slot.read, slot.bytes));
      if (slot.read.shared)
        ring()->publish(*slot.read.shared,
                        static_cast<std::uint32_t>(share_->plan->shared[*slot.read.shared].wanting.size()));
      IC_TRY(slot.arrival, scatter(slot.read, slot.bytes));
      report_.bytes_read += slot.read.window.end - slot.read.window.begin;
      return {};
    }
    slot.reading = false;
    if (slot.read.shared) IC_CHECK(leave(*slot.read.shared, std::move(slot.arrival)));
    Open& open = open_[slot.read.segment];
    if (--open.windows_left > 0) return {};
    IC_CHECK(open.source->check_unchanged());
    open.set.clear();
    open.source.reset();
    return {};
  }

  // What other ranks have read: any of what the ring can hold beyond the first that is not taken yet.
  Status take_what_is_there() {
    if (others_.empty()) return {};
    const std::uint64_t end = *others_.front().shared + ring()->slots();
    for (std::size_t i = 0; i < others_.size() && *others_[i].shared < end;) {
      const Read read = others_[i];
      if (!ring()->is_filled(*read.shared)) {
        ++i;
        continue;
      }
      IC_TRY(std::shared_ptr<Arrival> arrival, scatter(read, ring()->buffer(*read.shared)));
      IC_CHECK(leave(*read.shared, std::move(arrival)));
      report_.bytes_received += read.window.end - read.window.begin;
      others_.erase(others_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return {};
  }

  Status leave(std::uint64_t number, std::shared_ptr<Arrival> arrival) {
    if (arrival == nullptr)
      ring()->release(number);
    else
      held_.push_back({number, std::move(arrival)});
    return {};
  }

  Status release_what_passed() {
    while (!held_.empty()) {
      IC_TRY(const bool passed, held_.front().arrival->passed());
      if (!passed) break;
      ring()->release(held_.front().number);
      held_.pop_front();
    }
    return {};
  }

  [[nodiscard]] Status verify(const Read& read, const std::byte* bytes) const {
    const SegmentReads& reads = segments_[read.segment];
    for (std::uint64_t at = read.window.begin; at < read.window.end; at += kBlockBytes) {
      const std::uint64_t length = std::min(kBlockBytes, read.window.end - at);
      const std::uint32_t found = checksum::crc32c({bytes + (at - read.window.begin), length});
      if (found == reads.segment->block_crcs[at / kBlockBytes]) continue;
      return Error(ErrorCode::corrupt, "the bytes are not those that were saved: a block's checksum differs")
          .with_path(checkpoint_.path_of(reads.id.index, *reads.segment))
          .with_offset(at)
          .with_tensor(tensor_at(reads, at, length))
          .with_hint("The storage changed them; use another checkpoint");
    }
    return {};
  }

  // One that has bytes in this block; empty: it is the header.
  [[nodiscard]] std::string tensor_at(const SegmentReads& reads, std::uint64_t begin, std::uint64_t length) const {
    for (const manifest::Chunk& chunk : checkpoint_.indexes()[reads.id.index].chunks) {
      if (chunk.segment != reads.id.segment || chunk.bytes == 0) continue;
      if (chunk.begin < begin + length && begin < chunk.begin + chunk.bytes) return chunk.tensor;
    }
    return {};
  }

  // When its copies to devices have passed; null: there are none.
  Result<std::shared_ptr<Arrival>> scatter(const Read& read, const std::byte* bytes) {
    bool to_device = false;
    const Window& window = read.window;
    const std::vector<TargetCopy>& copies = segments_[read.segment].copies;
    const auto first = std::partition_point(
        copies.begin(), copies.end(), [&](const TargetCopy& copy) { return copy.box.chunk_end() <= window.begin; });
    for (auto next = first; next != copies.end() && next->box.chunk_begin() < window.end; ++next) {
      for (const BoxCopy::Part& part : next->box.parts(window.begin, window.end))
        IC_CHECK(bring(to_memory(part, bytes, window.begin, next->target->data), next->target->device));
      to_device |= next->target->device >= 0;
    }
    if (!to_device) return std::shared_ptr<Arrival>();
    return copies_->arrival();
  }

  Status bring(const StridedCopy& part, int device) {
    if (device >= 0) return copies_->copy(device, DeviceCopies::Direction::to_device, part);
    copy(part);
    return {};
  }

  const Checkpoint& checkpoint_;
  const std::vector<SegmentReads> segments_;
  const RestoreOptions& options_;
  const NodeShare* const share_;
  std::shared_ptr<memory::Arena> memory_;
  std::vector<std::unique_ptr<gpu::Pinned>> pinned_;  // memory_ and the ring, where a target lies on a device
  std::shared_ptr<DeviceCopies> copies_;
  std::vector<Open> open_;
  std::array<Slot, kWindows> slots_;
  std::deque<Read> alone_;    // to submit
  std::deque<Read> for_all_;  // to submit, once their buffers are free
  std::deque<Read> others_;   // that other ranks read, to take
  std::deque<Held> held_;
  Clock::TimePoint next_look_;
  RestoreReport report_;
};

}  // namespace

Result<RestoreReport> run_reads(const Checkpoint& checkpoint, std::vector<SegmentReads> segments,
                                const RestoreOptions& options, const NodeShare* share) {
  if (segments.empty()) return RestoreReport{};
  RestoreRun run(checkpoint, std::move(segments), options, share);
  IC_CHECK(run.run());
  return run.report();
}

}  // namespace infercluster::checkpoint
