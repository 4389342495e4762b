// SPDX-License-Identifier: Apache-2.0
#include "load/scan.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <utility>

#include "base/thread.h"
#include "base/units.h"
#include "io/engine.h"
#include "io/governor.h"
#include "memory/arena.h"

namespace infercluster::load {
namespace {

constexpr std::uint64_t kChunkBytes = 4 * kMiB;  // a multiple of every direct-I/O alignment
constexpr std::uint64_t kSlots = 8;
constexpr std::uint64_t kTailAlignment = 4096;
constexpr std::chrono::milliseconds kPollInterval{100};
static_assert(kChunkBytes % memory::kPopulateStep == 0);

}  // namespace

struct Scanner::Impl {
  Environment environment;
  ScanOptions options;
  std::shared_ptr<memory::Arena> arena;
  std::unique_ptr<io::Engine> engine;
};

namespace {

// The scan of one file: chunk k lives in slot k modulo kSlots from its submission to its visit.
class Pass {
 public:
  Pass(io::Engine& engine, memory::Arena& arena, const Environment& environment, io::FileSource& source)
      : engine_(engine), arena_(arena), environment_(environment), source_(source), sources_{&source} {
    chunks_ = source.size() / kChunkBytes + (source.size() % kChunkBytes != 0 ? 1 : 0);
  }

  Status run(const Scanner::Visit& visit, const Scanner::KeepGoing& keep_going) {
    while (visited_ < chunks_) {
      if (keep_going && !keep_going())
        return Error(ErrorCode::cancelled, "the scan was cancelled").with_path(source_.name());
      IC_CHECK(submit_more());
      if (Slot& slot = slot_of(visited_); visited_ < submitted_ && slot.delivered && slot.quiesced) {
        IC_CHECK(visit({memory_of(visited_), chunk_bytes(visited_)}));
        slot = {};
        ++visited_;
        continue;
      }
      IC_CHECK(take_events(kPollInterval));
    }
    return {};
  }

  // Until nothing is in flight, so that the ring may be used again.
  void drain() {
    engine_.cancel();
    while (engine_.active() != 0) static_cast<void>(take_events(kPollInterval));
  }

 private:
  struct Slot {
    bool delivered = false;
    bool quiesced = false;
  };
  Slot& slot_of(std::uint64_t chunk) { return slots_[chunk % kSlots]; }
  std::byte* memory_of(std::uint64_t chunk) { return arena_.data() + (chunk % kSlots) * kChunkBytes; }
  [[nodiscard]] std::uint64_t chunk_bytes(std::uint64_t chunk) const {
    return std::min(kChunkBytes, source_.size() - chunk * kChunkBytes);
  }

  Status submit_more() {
    while (submitted_ < chunks_ && submitted_ - visited_ < kSlots) {
      const std::uint64_t bytes = chunk_bytes(submitted_);
      if (!admitted_ && environment_.governor != nullptr) {
        const auto delay = environment_.governor->admit(source_.identity().device, io::Priority::foreground, bytes);
        if (delay > Clock::Duration::zero()) return take_events(delay);
      }
      admitted_ = true;
      if (!arena_.is_populated((submitted_ % kSlots) * kChunkBytes, kChunkBytes)) {
        IC_CHECK(arena_.populate_step((submitted_ % kSlots) * (kChunkBytes / memory::kPopulateStep)));
      }
      io::Transfer transfer;
      transfer.token = submitted_;
      transfer.sources = &sources_;
      transfer.offset = submitted_ * kChunkBytes;
      transfer.length = static_cast<std::uint32_t>(align_up(bytes, kTailAlignment));
      transfer.end_of_data = transfer.offset + bytes;
      transfer.memory = memory_of(submitted_);
      if (!engine_.submit(transfer)) return {};
      admitted_ = false;
      ++submitted_;
    }
    return {};
  }

  Status take_events(Clock::Duration timeout) {
    std::array<io::Event, 2 * kSlots> events;
    const std::size_t count = engine_.poll(events, timeout);
    std::optional<Error> failure;
    for (io::Event& event : std::span(events).first(count)) {
      Slot& slot = slot_of(event.token);
      if (event.kind == io::Event::Kind::quiesced) slot.quiesced = true;
      if (event.kind != io::Event::Kind::delivered) continue;
      slot.delivered = true;
      if (event.error && !failure) failure = std::move(event.error);
      if (environment_.governor != nullptr && !event.error) {
        environment_.governor->foreground_latency(source_.identity().device, event.latency, chunk_bytes(event.token));
      }
    }
    if (failure) return *std::move(failure);
    return {};
  }

  io::Engine& engine_;
  memory::Arena& arena_;
  const Environment& environment_;
  io::FileSource& source_;
  io::SourceSet sources_;
  std::array<Slot, kSlots> slots_{};
  std::uint64_t chunks_ = 0;
  std::uint64_t submitted_ = 0;
  std::uint64_t visited_ = 0;
  bool admitted_ = false;  // the governor has let the next chunk go, and the engine had no room for it yet
};

}  // namespace

Scanner::Scanner(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Scanner::~Scanner() = default;

Result<std::unique_ptr<Scanner>> Scanner::open(const ScanOptions& options, const Environment& environment) {
  if (in_forked_child())
    return Error(ErrorCode::unsupported, "this process was forked after the library was first used")
        .with_hint("Use it in the parent, or start the child with exec");
  auto impl = std::make_unique<Impl>();
  impl->environment = environment;
  impl->options = options;
  IC_TRY(impl->arena, memory::Arena::allocate(kSlots * kChunkBytes));
  IC_TRY(io::ChosenBackend chosen, environment.open_backend(options.backend));
  impl->engine = std::make_unique<io::Engine>(std::move(chosen.backend), *environment.clock, io::Engine::Options{});
  return std::unique_ptr<Scanner>(new Scanner(std::move(impl)));
}

Result<Scanner::Scanned> Scanner::scan(const std::string& path, const Visit& visit, const KeepGoing& keep_going) {
  io::FileSource::Options options;
  options.direct = impl_->options.direct;
  IC_TRY(const std::unique_ptr<io::FileSource> source, io::FileSource::open(path, nullptr, options));
  Pass pass(*impl_->engine, *impl_->arena, impl_->environment, *source);
  const Status status = pass.run(visit, keep_going);
  pass.drain();
  // A file that was cut under the scan fails to read first; that it changed says more.
  IC_CHECK(source->check_unchanged());
  if (!status.ok()) return status.error();
  return Scanned{source->identity(), source->mode(), source->reason()};
}

}  // namespace infercluster::load
