// SPDX-License-Identifier: Apache-2.0
// Carries out a plan: keeps the engine busy, the memory ahead of it populated, and each unit complete before it is
// delivered.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "io/engine.h"
#include "io/foreground_latency.h"
#include "io/governor.h"
#include "load/plan.h"
#include "load/report.h"
#include "load/shard_reader.h"
#include "load/target.h"
#include "memory/block.h"
#include "memory/copier.h"
#include "memory/prefault.h"
#include "memory/ring.h"

namespace infercluster::load {

struct RunnerOptions {
  std::uint64_t in_flight_bytes_max = 64u << 20;  // of landed transfers; staged ones are bounded by the ring
  unsigned prefault_threads = 1;
};

// What a runner works with.
struct Machinery {
  std::unique_ptr<io::Engine> engine;
  std::optional<memory::Ring> ring;      // in host memory; for staged transfers
  std::optional<memory::Ring> gds_ring;  // in device memory; for those by GPUDirect Storage
  std::shared_ptr<Target> target;
  std::unique_ptr<memory::Copier> copier;
  std::unique_ptr<io::ForegroundLatency> told;  // null: there is no target
};

// A unit's memory. A null block: the unit needs none.
struct Acquired {
  memory::Block block;
  std::shared_ptr<const memory::Mark> busy_until;  // somebody may still work on the memory up to here; null: nobody
};

struct RunnerHooks {
  // Nothing: there is no room for it yet, and the runner asks again when it was woken.
  std::function<Result<std::optional<Acquired>>(std::size_t unit)> acquire;
  std::function<Status(std::size_t unit)>
      delivered;  // its bytes are in place and checked, and no read may still write to its memory
};

// Thread rule: run() on one thread; cancel(), wake() and bytes_done() on any.
class Runner {
 public:
  Runner(const Tables& tables, const Plan& plan, std::span<ShardReader> readers, Machinery machinery,
         const Clock& clock, io::Governor* governor, const RunnerOptions& options, RunnerHooks hooks);
  ~Runner();

  // Returns when every unit is delivered, or at the first error, when nothing is in flight any more.
  Status run();
  void cancel();
  void wake();

  [[nodiscard]] std::uint64_t bytes_done() const { return bytes_done_.load(std::memory_order_relaxed); }
  // Both are complete once run() has returned.
  [[nodiscard]] const Waited& waited() const { return waited_; }
  // By the host, after they had landed or were staged.
  [[nodiscard]] std::uint64_t moved_bytes() const { return moved_bytes_ + engine_->statistics().moved_bytes; }
  // To a device.
  [[nodiscard]] const memory::CopyStatistics& device_copies() const { return device_copies_; }
  [[nodiscard]] const io::EngineStatistics& engine_statistics() const { return engine_->statistics(); }

 private:
  enum class Blocked : std::uint8_t { no, memory, storage, window };

  struct InFlight {
    std::size_t unit = 0;
    std::size_t transfer = 0;
    memory::Ring* ring = nullptr;  // of `slot`
    std::optional<unsigned> slot;
    memory::Copier::Fence fence = 0;
    bool delivered = false;
    bool quiesced = false;
  };

  struct UnitState {
    memory::Block block;
    std::uint64_t transfers_left = 0;  // not delivered, quiesced and copied
  };

  Status issue();
  Result<bool> issue_one();  // false: blocked, see blocked_
  Result<bool> acquire_units_ahead();
  Status wait_for_events();
  Status handle(const io::Event& event);
  [[nodiscard]] memory::Span memory_of(const InFlight& flight) const;  // the transfer's own
  Status deliver_transfer(InFlight& flight);
  Status verify(const Unit& unit, const PlannedTransfer& transfer, const std::byte* memory);
  Status scatter(const Unit& unit, const PlannedTransfer& transfer, const memory::Span& window, const UnitState& state);
  Status release_copied();
  Status complete(std::size_t unit);
  Status check_sha256(const Unit& unit, const UnitState& state);
  Error located(Error error, std::size_t shard, std::uint64_t file_offset) const;
  void fail(Error error);

  const Tables& tables_;
  const Plan& plan_;
  const std::span<ShardReader> readers_;
  const std::unique_ptr<io::Engine> engine_;
  std::optional<memory::Ring> ring_;
  std::optional<memory::Ring> gds_ring_;
  const std::shared_ptr<Target> target_;
  const std::unique_ptr<memory::Copier> copier_;
  const std::unique_ptr<io::ForegroundLatency> told_;
  const Clock& clock_;
  io::Governor* const governor_;
  const RunnerOptions options_;
  const RunnerHooks hooks_;
  memory::Prefaulter prefaulter_;

  std::vector<UnitState> units_;
  std::vector<std::size_t> shard_units_left_;
  std::vector<InFlight> flights_;
  std::vector<std::uint32_t> free_flights_;
  std::vector<std::uint32_t> copying_;  // flights whose slot waits for its fence
  std::size_t next_unit_ = 0;
  std::size_t next_transfer_ = 0;
  std::size_t next_acquire_ = 0;
  std::size_t units_left_ = 0;
  std::uint64_t landed_in_flight_ = 0;  // bytes
  Blocked blocked_ = Blocked::no;
  Clock::Duration pause_{};  // the governor asked to wait
  std::optional<Error> error_;

  std::atomic<bool> cancelled_{false};
  std::atomic<std::uint64_t> bytes_done_{0};
  Waited waited_;
  std::uint64_t moved_bytes_ = 0;
  memory::CopyStatistics device_copies_;
};

}  // namespace infercluster::load
