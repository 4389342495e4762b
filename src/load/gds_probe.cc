// SPDX-License-Identifier: Apache-2.0
#include "load/gds_probe.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>

#include "base/units.h"

namespace infercluster::load {
namespace {

constexpr std::chrono::nanoseconds kPollTimeout = std::chrono::milliseconds(100);
constexpr std::chrono::nanoseconds kFenceTimeout = std::chrono::microseconds(50);

class Probe {
 public:
  Probe(const ProbedWay& way, const ProbedRange& range, const memory::Span& scratch, io::Engine& engine)
      : way_(way), range_(range), scratch_(scratch), engine_(engine), sources_{&way.source}, next_(range.begin) {}

  Status run() {
    Status status;
    while (status.ok() && (next_ < range_.end || engine_.active() > 0 || !copying_.empty())) status = step();
    if (!status.ok()) engine_.cancel();
    while (engine_.active() > 0) {
      std::array<io::Event, 32> events;
      engine_.poll(events, kPollTimeout);
    }
    const Status drained = way_.copier.drain();
    return status.ok() ? drained : status;
  }

 private:
  struct Copying {
    unsigned slot = 0;
    memory::Copier::Fence fence = 0;
  };

  Status step() {
    submit();
    std::array<io::Event, 32> events;
    const std::size_t count = engine_.poll(events, copying_.empty() ? kPollTimeout : kFenceTimeout);
    for (std::size_t i = 0; i < count; ++i) {
      if (events[i].error) return *events[i].error;
      if (events[i].kind == io::Event::Kind::quiesced) IC_CHECK(copy(static_cast<unsigned>(events[i].token)));
    }
    while (!copying_.empty()) {
      IC_TRY(const bool passed, way_.copier.passed(copying_.front().fence));
      if (!passed) break;
      way_.ring.give_back(copying_.front().slot);
      copying_.pop_front();
    }
    return {};
  }

  void submit() {
    while (next_ < range_.end && way_.ring.available() > 0) {
      const unsigned slot = *way_.ring.take();
      io::Transfer transfer;
      transfer.token = slot;
      transfer.sources = &sources_;
      transfer.offset = next_;
      transfer.length = static_cast<std::uint32_t>(std::min(way_.ring.slot_bytes(), range_.end - next_));
      transfer.end_of_data = next_ + transfer.length;
      transfer.memory = way_.ring.span(slot).host();
      if (!engine_.submit(transfer)) {
        way_.ring.give_back(slot);
        return;
      }
      next_ += transfer.length;
    }
  }

  Status copy(unsigned slot) {
    const std::uint64_t bytes = std::min(way_.ring.slot_bytes(), scratch_.bytes);
    IC_CHECK(way_.copier.copy(way_.ring.span(slot).part(0, bytes), scratch_.part(0, bytes)));
    IC_TRY(const memory::Copier::Fence fence, way_.copier.fence());
    copying_.push_back({slot, fence});
    return {};
  }

  const ProbedWay& way_;
  const ProbedRange range_;
  const memory::Span scratch_;
  io::Engine& engine_;
  const io::SourceSet sources_;
  std::uint64_t next_ = 0;
  std::deque<Copying> copying_;
};

}  // namespace

Result<double> probe_rate(const ProbedWay& way, const ProbedRange& range, const memory::Span& scratch,
                          io::Engine& engine, const Clock& clock) {
  const Clock::TimePoint begin = clock.now();
  IC_CHECK(Probe(way, range, scratch, engine).run());
  const double seconds = seconds_between(begin, clock.now());
  return static_cast<double>(range.end - range.begin) / std::max(seconds, 1e-9);
}

}  // namespace infercluster::load
