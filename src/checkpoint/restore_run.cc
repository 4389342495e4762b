// SPDX-License-Identifier: Apache-2.0
// Runs a restore's reads: a ring of windows over the engine; each is checked, then copied to the targets.
#include <algorithm>
#include <array>
#include <deque>
#include <optional>

#include "base/units.h"
#include "checkpoint/restore.h"
#include "checkpoint/restore_plan.h"
#include "checksum/crc32c.h"
#include "gpu/memory.h"
#include "io/engine.h"
#include "memory/arena.h"

namespace infercluster::checkpoint {
namespace {

using manifest::kBlockBytes;

constexpr std::uint64_t kWindowBytes = 4 * kMiB;
constexpr unsigned kWindows = 8;  // in flight: enough for an NVMe device's speed
constexpr auto kForever = std::chrono::hours(24);

class RestoreRun {
 public:
  RestoreRun(const Checkpoint& checkpoint, std::vector<SegmentReads> segments, const RestoreOptions& options)
      : checkpoint_(checkpoint), segments_(std::move(segments)), options_(options) {}

  Status run() {
    std::uint64_t windows = 0;
    for (const SegmentReads& reads : segments_) windows += reads.windows.size();
    slots_used_ = static_cast<unsigned>(std::min<std::uint64_t>(windows, kWindows));
    IC_TRY(memory_, memory::Arena::allocate(slots_used_ * kWindowBytes));
    IC_CHECK(open_devices());
    IC_TRY(io::ChosenBackend backend, io::open_backend(options_.backend));
    io::Engine engine(std::move(backend.backend), steady_clock(), io::Engine::Options{});
    open_.resize(segments_.size());
    Status done = pump(engine);
    if (!done.ok()) engine.cancel();
    std::array<io::Event, kWindows> events;
    while (engine.active() > 0) engine.poll(events, kForever);
    const Status copied = copies_ == nullptr ? Status() : copies_->drain();
    return done.ok() ? copied : done;
  }

  [[nodiscard]] std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  // A segment while its windows are read.
  struct Open {
    std::unique_ptr<io::FileSource> source;
    io::SourceSet set;
    std::size_t windows_left = 0;
  };
  struct Slot {
    std::size_t segment = 0;
    Window window;
    bool reading = false;
    std::shared_ptr<Arrival> arrival;  // of its copies to devices; null: there are none under way
  };

  // Only those that targets lie on.
  Status open_devices() {
    for (const SegmentReads& reads : segments_) {
      for (const TargetCopy& copy : reads.copies) {
        if (copy.target->device < 0) continue;
        if (copies_ == nullptr) copies_ = DeviceCopies::make(options_.streams);
        IC_TRY(const std::shared_ptr<gpu::Device> device, copies_->open(copy.target->device));
        if (pinned_ == nullptr) {
          for (std::uint64_t step = 0; step < memory_->steps(); ++step) IC_CHECK(memory_->populate_step(step));
          IC_TRY(pinned_, gpu::Pinned::make(device, memory_->span()));
        }
      }
    }
    return {};
  }

  Status pump(io::Engine& engine) {
    std::array<io::Event, kWindows> events;
    while (true) {
      for (unsigned slot = 0; slot < slots_used_ && segment_ < segments_.size(); ++slot) {
        IC_TRY(const bool free, is_free(slots_[slot]));
        if (free) IC_CHECK(submit(engine, slot));
      }
      if (engine.active() == 0 && segment_ == segments_.size()) return {};
      if (engine.active() == 0) {  // all wait for copies
        IC_CHECK(slots_[0].arrival->wait());
        continue;
      }
      const std::size_t count = engine.poll(events, kForever);
      for (std::size_t i = 0; i < count; ++i) IC_CHECK(take(events[i]));
    }
  }

  static Result<bool> is_free(Slot& slot) {
    if (slot.reading) return false;
    if (slot.arrival == nullptr) return true;
    IC_TRY(const bool passed, slot.arrival->passed());
    if (passed) slot.arrival.reset();
    return passed;
  }

  Status submit(io::Engine& engine, unsigned number) {
    Open& open = open_[segment_];
    const SegmentReads& reads = segments_[segment_];
    if (open.source == nullptr) IC_CHECK(open_segment(open, reads));
    const Window window = reads.windows[window_];
    // A resident or buffered file has no alignment; a direct one may be asked for bytes beyond its end.
    const std::uint64_t length = align_up(window.end - window.begin, open.source->alignment());
    const io::Transfer transfer{.token = number,
                                .sources = &open.set,
                                .offset = window.begin,
                                .length = static_cast<std::uint32_t>(length),
                                .end_of_data = window.end,
                                .memory = memory_->data() + number * kWindowBytes,
                                .priority = io::Priority::foreground,
                                .hedge_after = std::nullopt};
    IC_ASSERT(engine.submit(transfer));  // no more than kWindows, which every backend takes
    slots_[number] = {segment_, window, true, nullptr};
    if (++window_ == reads.windows.size()) {
      window_ = 0;
      ++segment_;
    }
    return {};
  }

  Status open_segment(Open& open, const SegmentReads& reads) {
    const std::string path = checkpoint_.path() + "/" + reads.segment->name;
    io::FileSource::Options options;
    options.direct = options_.direct;
    options.begin = reads.windows.front().begin;
    options.end = reads.windows.back().end;
    IC_TRY(open.source, io::FileSource::open(path, nullptr, options));
    if (open.source->size() != reads.segment->bytes) {
      return Error(ErrorCode::corrupt, "expected " + std::to_string(reads.segment->bytes) + " bytes, found " +
                                           std::to_string(open.source->size()))
          .with_path(path);
    }
    open.set = {open.source.get()};
    open.windows_left = reads.windows.size();
    return {};
  }

  Status take(const io::Event& event) {
    if (event.error) return *event.error;
    Slot& slot = slots_[event.token];
    if (event.kind == io::Event::Kind::delivered) {
      const std::byte* bytes = memory_->data() + event.token * kWindowBytes;
      IC_CHECK(verify(slot, bytes));
      IC_CHECK(scatter(slot, bytes));
      bytes_read_ += slot.window.end - slot.window.begin;
      return {};
    }
    slot.reading = false;
    Open& open = open_[slot.segment];
    if (--open.windows_left > 0) return {};
    IC_CHECK(open.source->check_unchanged());
    open.set.clear();
    open.source.reset();
    return {};
  }

  Status verify(const Slot& slot, const std::byte* bytes) const {
    const SegmentReads& reads = segments_[slot.segment];
    for (std::uint64_t at = slot.window.begin; at < slot.window.end; at += kBlockBytes) {
      const std::uint64_t length = std::min(kBlockBytes, slot.window.end - at);
      const std::uint32_t found = checksum::crc32c({bytes + (at - slot.window.begin), length});
      if (found == reads.segment->block_crcs[at / kBlockBytes]) continue;
      return Error(ErrorCode::corrupt, "the bytes are not those that were saved: a block's checksum differs")
          .with_path(checkpoint_.path() + "/" + reads.segment->name)
          .with_offset(at)
          .with_tensor(tensor_at(reads, at, length))
          .with_hint("The storage changed them; use another checkpoint");
    }
    return {};
  }

  // One that has bytes in this block; empty: it is the header.
  [[nodiscard]] std::string tensor_at(const SegmentReads& reads, std::uint64_t begin, std::uint64_t length) const {
    for (const manifest::Index& index : checkpoint_.indexes()) {
      for (const manifest::Chunk& chunk : index.chunks) {
        if (&index.segments[chunk.segment] != reads.segment || chunk.bytes == 0) continue;
        if (chunk.begin < begin + length && begin < chunk.begin + chunk.bytes) return chunk.tensor;
      }
    }
    return {};
  }

  Status scatter(Slot& slot, const std::byte* bytes) {
    bool to_device = false;
    const std::vector<TargetCopy>& copies = segments_[slot.segment].copies;
    const auto first = std::partition_point(copies.begin(), copies.end(), [&](const TargetCopy& copy) {
      return copy.box.chunk_end() <= slot.window.begin;
    });
    for (auto next = first; next != copies.end() && next->box.chunk_begin() < slot.window.end; ++next) {
      for (const BoxCopy::Part& part : next->box.parts(slot.window.begin, slot.window.end))
        IC_CHECK(bring(to_memory(part, bytes, slot.window.begin, next->target->data), next->target->device));
      to_device |= next->target->device >= 0;
    }
    if (!to_device) return {};
    IC_TRY(slot.arrival, copies_->arrival());
    return {};
  }

  Status bring(const StridedCopy& part, int device) {
    if (device >= 0) return copies_->copy(device, DeviceCopies::Direction::to_device, part);
    copy(part);
    return {};
  }

  const Checkpoint& checkpoint_;
  const std::vector<SegmentReads> segments_;
  const RestoreOptions& options_;
  std::shared_ptr<memory::Arena> memory_;
  std::unique_ptr<gpu::Pinned> pinned_;  // memory_, where a target lies on a device
  std::shared_ptr<DeviceCopies> copies_;
  std::vector<Open> open_;
  std::array<Slot, kWindows> slots_;
  unsigned slots_used_ = 0;
  std::size_t segment_ = 0;  // of the next window
  std::size_t window_ = 0;
  std::uint64_t bytes_read_ = 0;
};

// Reads and checks what was planned since `begin`.
Result<RestoreReport> run_reads(const Checkpoint& checkpoint, std::vector<SegmentReads> segments,
                                const RestoreOptions& options, Clock::TimePoint begin) {
  RestoreReport report;
  report.segments = segments.size();
  if (!segments.empty()) {
    RestoreRun run(checkpoint, std::move(segments), options);
    IC_CHECK(run.run());
    report.bytes_read = run.bytes_read();
  }
  report.seconds = seconds_between(begin, steady_clock().now());
  return report;
}

}  // namespace

Result<RestoreReport> Checkpoint::restore(std::span<const Target> targets, const RestoreOptions& options) const {
  const Clock::TimePoint begin = steady_clock().now();
  IC_CHECK(check(targets));
  IC_TRY(std::vector<SegmentReads> segments, plan_reads(*this, targets, kWindowBytes));
  std::uint64_t bytes_wanted = 0;
  for (const Target& target : targets) {
    IC_TRY(const std::uint64_t bytes, check_piece(target.piece));
    bytes_wanted += bytes;
  }
  IC_TRY(RestoreReport report, run_reads(*this, std::move(segments), options, begin));
  report.bytes_wanted = bytes_wanted;
  return report;
}

Result<RestoreReport> Checkpoint::verify(const RestoreOptions& options) const {
  const Clock::TimePoint begin = steady_clock().now();
  return run_reads(*this, plan_whole_reads(*this, kWindowBytes), options, begin);
}

}  // namespace infercluster::checkpoint
