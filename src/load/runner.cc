// SPDX-License-Identifier: Apache-2.0
#include "load/runner.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "load/blob_check.h"
#include "load/scatter.h"

namespace infercluster::load {
namespace {

// An upper bound for a wait without news; whatever the runner waits for wakes it.
constexpr std::chrono::nanoseconds kPollTimeout = std::chrono::seconds(1);
// While copies are outstanding that report no completion, their fences are asked this often.
constexpr std::chrono::nanoseconds kFenceTimeout = std::chrono::microseconds(50);
constexpr std::size_t kFlightsMax = 256;

}  // namespace

Runner::Runner(const Tables& tables, const Plan& plan, std::span<ShardReader> readers, Machinery machinery,
               const Clock& clock, io::Governor* governor, const RunnerOptions& options, RunnerHooks hooks)
    : tables_(tables),
      plan_(plan),
      readers_(readers),
      engine_(std::move(machinery.engine)),
      ring_(std::move(machinery.ring)),
      gds_ring_(std::move(machinery.gds_ring)),
      target_(std::move(machinery.target)),
      copier_(std::move(machinery.copier)),
      told_(std::move(machinery.told)),
      clock_(clock),
      governor_(governor),
      options_(options),
      hooks_(std::move(hooks)),
      prefaulter_(options.prefault_threads, [this] { engine_->wake(); }),
      units_(plan.units.size()),
      flights_(kFlightsMax),
      units_left_(plan.units.size()) {
  for (std::uint32_t i = kFlightsMax; i-- > 0;) free_flights_.push_back(i);
  copying_.reserve(kFlightsMax);
  for (std::size_t i = 0; i < units_.size(); ++i) units_[i].transfers_left = plan.units[i].transfers.size();
  shard_units_left_.resize(readers.size());
  for (const Unit& unit : plan.units) ++shard_units_left_[unit.shard];
}

Runner::~Runner() {
  prefaulter_.stop();
}

void Runner::cancel() {
  cancelled_.store(true);
  engine_->wake();
}

void Runner::wake() {
  engine_->wake();
}

Status Runner::run() {
  while (units_left_ > 0 && !error_) {
    if (cancelled_.load()) {
      fail(Error(ErrorCode::cancelled, "the load was cancelled"));
      break;
    }
    if (const auto error = prefaulter_.error()) {
      fail(*error);
      break;
    }
    if (Status status = issue(); !status.ok()) {
      fail(std::move(status).error());
      break;
    }
    if (units_left_ == 0) break;
    if (Status status = wait_for_events(); !status.ok()) fail(std::move(status).error());
  }
  // Only when nothing is in flight may memory be let go.
  while (engine_->active() > 0) {
    std::array<io::Event, 32> events;
    engine_->poll(events, kPollTimeout);
  }
  if (Status drained = copier_->drain(); !drained.ok() && !error_) error_ = std::move(drained).error();
  if (target_->kind() == memory::Kind::cuda) device_copies_ = copier_->statistics();
  prefaulter_.stop();
  if (error_) return *error_;
  return {};
}

void Runner::fail(Error error) {
  if (error_) return;  // the first cause is the one to tell
  error_ = std::move(error);
  engine_->cancel();
}

Status Runner::issue() {
  blocked_ = Blocked::no;
  pause_ = {};
  while (next_unit_ < plan_.units.size()) {
    IC_TRY(const bool acquired, acquire_units_ahead());
    if (next_acquire_ <= next_unit_) {
      IC_ASSERT(!acquired);
      blocked_ = Blocked::window;
      return {};
    }
    if (next_transfer_ == plan_.units[next_unit_].transfers.size()) {
      if (plan_.units[next_unit_].transfers.empty()) IC_CHECK(complete(next_unit_));
      ++next_unit_;
      next_transfer_ = 0;
      continue;
    }
    IC_TRY(const bool issued, issue_one());
    if (!issued) return {};
    ++next_transfer_;
  }
  return {};
}

// Takes memory for the unit at hand and the one behind it, so that populating runs ahead of reading. False: there was
// no room for another.
Result<bool> Runner::acquire_units_ahead() {
  constexpr std::size_t kAhead = 2;
  while (next_acquire_ < plan_.units.size() && next_acquire_ < next_unit_ + kAhead) {
    IC_TRY(std::optional<Acquired> acquired, hooks_.acquire(next_acquire_));
    if (!acquired) return false;
    if (acquired->busy_until) IC_CHECK(copier_->wait_for(*acquired->busy_until));
    UnitState& state = units_[next_acquire_];
    const Unit& unit = plan_.units[next_acquire_];
    state.block = std::move(acquired->block);
    // Copies from the page cache clear fresh pages best themselves, while they are in the processor's cache.
    const ShardReader& reader = readers_[unit.shard];
    const bool resident = reader.source != nullptr && reader.source->mode() == io::FileMode::resident;
    const std::shared_ptr<memory::Arena>& arena = state.block.arena;
    if (arena && !resident && !arena->is_populated(0, unit.landing_bytes)) prefaulter_.add(arena, unit.landing_bytes);
    ++next_acquire_;
  }
  return true;
}

Result<bool> Runner::issue_one() {
  const Unit& unit = plan_.units[next_unit_];
  const PlannedTransfer& planned = unit.transfers[next_transfer_];
  UnitState& state = units_[next_unit_];
  ShardReader& reader = readers_[unit.shard];
  const bool resident = reader.source->mode() == io::FileMode::resident;
  std::optional<memory::Ring>& ring = reader.gds ? gds_ring_ : ring_;  // there, where transfers are staged
  const auto blocked_on = [this](Blocked what) {
    blocked_ = what;
    return false;
  };
  if (free_flights_.empty()) return blocked_on(Blocked::storage);
  if (planned.landed) {
    if (landed_in_flight_ > 0 && landed_in_flight_ + planned.length > options_.in_flight_bytes_max) {
      return blocked_on(Blocked::storage);
    }
    if (!resident && !state.block.arena->is_populated(planned.arena_offset, planned.length))
      return blocked_on(Blocked::memory);
  } else if (ring->available() == 0) {
    return blocked_on(Blocked::storage);
  }
  if (governor_ != nullptr) {
    pause_ = governor_->admit(reader.source->identity().device, io::Priority::foreground, planned.length);
    if (pause_ > Clock::Duration{}) return blocked_on(Blocked::storage);
  }
  const std::uint32_t index = free_flights_.back();
  InFlight& flight = flights_[index];
  flight = {next_unit_, next_transfer_, nullptr, std::nullopt, 0, false, false};
  if (!planned.landed) {
    flight.ring = &*ring;
    flight.slot = ring->take();
  }
  io::Transfer transfer;
  transfer.token = index;
  transfer.sources = &reader.sources;
  transfer.offset = planned.file_offset;
  transfer.length = planned.length;
  transfer.end_of_data = planned.end_of_data;
  transfer.memory = memory_of(flight).host();
  if (!engine_->submit(transfer)) {
    if (flight.slot) ring->give_back(*flight.slot);
    return blocked_on(Blocked::storage);
  }
  free_flights_.pop_back();
  if (planned.landed) landed_in_flight_ += planned.length;
  return true;
}

Status Runner::wait_for_events() {
  std::array<io::Event, 64> events;
  std::chrono::nanoseconds timeout = kPollTimeout;
  if (!copying_.empty()) timeout = kFenceTimeout;
  if (pause_ > Clock::Duration{}) timeout = std::min<std::chrono::nanoseconds>(timeout, pause_);
  const bool starved = blocked_ == Blocked::window ||
                       (blocked_ == Blocked::memory && landed_in_flight_ * 2 < options_.in_flight_bytes_max);
  const Clock::TimePoint before = clock_.now();
  const std::size_t count = engine_->poll(events, timeout);
  (starved ? waited_.memory : waited_.storage) += seconds_between(before, clock_.now());
  for (std::size_t i = 0; i < count; ++i) IC_CHECK(handle(events[i]));
  return release_copied();
}

Status Runner::handle(const io::Event& event) {
  InFlight& flight = flights_[event.token];
  const Unit& unit = plan_.units[flight.unit];
  const PlannedTransfer& planned = unit.transfers[flight.transfer];
  if (event.kind == io::Event::Kind::delivered) {
    flight.delivered = true;
    if (event.error) return located(*event.error, unit.shard, event.error->offset().value_or(planned.file_offset));
    if (governor_ != nullptr) {
      governor_->foreground_latency(readers_[unit.shard].source->identity().device, event.latency, planned.length);
    }
    if (told_ != nullptr && readers_[unit.shard].source->mode() != io::FileMode::resident)
      told_->add(clock_.now(), event.latency);
    IC_CHECK(deliver_transfer(flight));
    bytes_done_.fetch_add(planned.end_of_data - planned.file_offset, std::memory_order_relaxed);
    return {};
  }
  flight.quiesced = true;
  if (planned.landed) landed_in_flight_ -= planned.length;
  copying_.push_back(static_cast<std::uint32_t>(event.token));
  return {};
}

memory::Span Runner::memory_of(const InFlight& flight) const {
  if (flight.slot) return flight.ring->span(*flight.slot);
  const PlannedTransfer& planned = plan_.units[flight.unit].transfers[flight.transfer];
  return units_[flight.unit].block.span.part(planned.arena_offset, planned.length);
}

Status Runner::deliver_transfer(InFlight& flight) {
  const Unit& unit = plan_.units[flight.unit];
  const PlannedTransfer& planned = unit.transfers[flight.transfer];
  const memory::Span memory = memory_of(flight);
  IC_CHECK(verify(unit, planned, memory.host()));
  if (!planned.landed) {
    const memory::Span window = memory.part(0, planned.end_of_data - planned.file_offset);
    IC_CHECK(scatter(unit, planned, window, units_[flight.unit]));
    IC_TRY(flight.fence, copier_->fence());
  }
  return {};
}

Status Runner::verify(const Unit& unit, const PlannedTransfer& transfer, const std::byte* memory) {
  const std::optional<Seal>& seal = readers_[unit.shard].seal;
  if (!seal) return {};
  const Clock::TimePoint before = clock_.now();
  Status status;
  for (std::uint64_t at = transfer.file_offset; at < transfer.end_of_data && status.ok(); at += kSealBlockBytes) {
    const std::uint64_t block = at / kSealBlockBytes;
    if (!seal->check_block(block, {memory + (at - transfer.file_offset), seal->block_bytes(block)})) {
      status = located(Error(ErrorCode::corrupt,
                             "its bytes are not those that were sealed: the checksum of 64 KiB from here on differs")
                           .with_offset(at)
                           .with_hint("The file is damaged: fetch it again, and check with `infercluster verify`"),
                       unit.shard, at);
    }
  }
  waited_.verify += seconds_between(before, clock_.now());
  return status;
}

Status Runner::scatter(const Unit& unit, const PlannedTransfer& transfer, const memory::Span& window,
                       const UnitState& state) {
  for (const std::uint32_t index : transfer.scatter) {
    const StagedRows& staged = unit.rows[index];
    const PlannedTensor& tensor = plan_.tensors[staged.tensor];
    const memory::Span span = tensor.span_in(state.block.span);
    IC_TRY(const std::uint64_t copied, scatter_rows(staged.rows, transfer.file_offset, window, span, *copier_));
    if (span.kind == memory::Kind::host) moved_bytes_ += copied;
  }
  return {};
}

// Gives back what is quiesced and whose copies are done, and completes units.
Status Runner::release_copied() {
  std::size_t kept = 0;
  for (const std::uint32_t index : copying_) {
    InFlight& flight = flights_[index];
    if (flight.slot) {
      IC_TRY(const bool passed, copier_->passed(flight.fence));
      if (!passed) {
        copying_[kept++] = index;
        continue;
      }
      flight.ring->give_back(*flight.slot);
    }
    free_flights_.push_back(index);
    if (--units_[flight.unit].transfers_left == 0) IC_CHECK(complete(flight.unit));
  }
  copying_.resize(kept);
  return {};
}

Status Runner::complete(std::size_t index) {
  const Unit& unit = plan_.units[index];
  UnitState& state = units_[index];
  for (const Move& move : unit.moves) {
    std::memmove(state.block.span.host() + move.to, state.block.span.host() + move.from, move.bytes);
    moved_bytes_ += move.bytes;
  }
  IC_CHECK(check_sha256(unit, state));
  --units_left_;
  // So that a repository of many files does not hold a second descriptor for each.
  const auto& source = readers_[unit.shard].source;
  if (--shard_units_left_[unit.shard] == 0 && source != nullptr) source->close_direct();
  state.block = {};
  return hooks_.delivered(index);
}

Status Runner::check_sha256(const Unit& unit, const UnitState& state) {
  const ShardReader& reader = readers_[unit.shard];
  if (reader.sha256.empty()) return {};
  const Clock::TimePoint before = clock_.now();
  Status status =
      check_blob({plan_, unit, state.block, *tables_.shards[unit.shard], *reader.source, reader.sha256}, *target_);
  waited_.verify += seconds_between(before, clock_.now());
  return status;
}

// Adds the file's path, and the tensor that lies at that offset of it.
Error Runner::located(Error error, std::size_t shard, std::uint64_t file_offset) const {
  const safetensors::Header& header = *tables_.shards[shard];
  if (error.path().empty()) error = Error(error).with_path(readers_[shard].source->name());
  if (!error.offset()) error = Error(error).with_offset(file_offset);
  const std::uint64_t at = std::max(file_offset, header.data_begin()) - header.data_begin();
  const auto& tensors = header.tensors();
  const auto next =
      std::upper_bound(tensors.begin(), tensors.end(), at,
                       [](std::uint64_t offset, const safetensors::Tensor& tensor) { return offset < tensor.begin; });
  if (next != tensors.begin() && error.tensor().empty()) error = Error(error).with_tensor(std::prev(next)->name);
  return error;
}

}  // namespace infercluster::load
