// SPDX-License-Identifier: Apache-2.0
#include "target/target.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/units.h"

namespace infercluster::target {
namespace {

Result<State> first_state(const TargetOptions& options) {
  if (!options.nqn.empty()) IC_CHECK(nvme::check_nqn(options.nqn));
  for (const std::string& host : options.admission.hosts) IC_CHECK(nvme::check_nqn(host));
  for (const auto& [host, secret] : options.admission.secrets) IC_CHECK(nvme::check_nqn(host));
  if (!options.state_path.empty()) {
    IC_TRY(std::optional<State> known, load_state(options.state_path));
    if (known && (options.nqn.empty() || known->nqn == options.nqn)) return *std::move(known);
    if (known) {
      return Error(ErrorCode::invalid_argument, "the state is that of " + known->nqn + ", not of " + options.nqn)
          .with_path(options.state_path)
          .with_hint("Leave the NQN out, or give another state file");
    }
  }
  IC_TRY(State fresh, new_state(options.nqn));
  if (!options.state_path.empty()) IC_CHECK(save_state(options.state_path, fresh));
  return fresh;
}

}  // namespace

Result<std::unique_ptr<Target>> Target::start(const TargetOptions& options) {
  IC_ASSERT(options.shards > 0);
  std::unique_ptr<Target> target(new Target);
  if (!options.state_path.empty()) {
    IC_TRY(target->state_lock_, lock_state(options.state_path));
  }
  IC_TRY(target->listener_, os::listen_tcp(options.listen));
  IC_TRY(target->address_, os::local_address(target->listener_));
  IC_TRY(target->state_, first_state(options));
  target->state_path_ = options.state_path;
  const State& state = target->state_;
  target->subsystem_ = {.nqn = state.nqn,
                        .uuid = state.uuid,
                        .serial = state.serial,
                        .firmware = std::string(INFERCLUSTER_VERSION).substr(0, 8),
                        .blocks = kSpaceBlocks,
                        .transfer_bits = 8,
                        .io_queues_max = 8,
                        .queue_entries_max = 128};
  target->space_ = std::make_unique<AddressSpace>(std::max(state.high_water_block, kEdgeBlocks));
  target->controllers_ = std::make_unique<Controllers>(target->subsystem_, options.admission, options.limits);
  const Shard::Shared shared{.controllers = target->controllers_.get(),
                             .space = target->space_.get(),
                             .clock = &steady_clock(),
                             .listener = &target->listener_};
  for (unsigned i = 0; i < options.shards; ++i) {
    IC_TRY(std::unique_ptr<Shard> shard, Shard::open(shared, options.shard));
    target->shards_.push_back(std::move(shard));
  }
  for (unsigned i = 0; i < options.shards; ++i) {
    target->threads_.push_back(start_thread("target-" + std::to_string(i), [shard = target->shards_[i].get()] {
      if (const Status status = shard->run(); !status.ok()) log_error(status.error().to_string());
    }));
  }
  return target;
}

Target::~Target() {
  for (const auto& shard : shards_) shard->stop();
  for (std::thread& thread : threads_) thread.join();
}

// Makes room for `needed_blocks` more addresses durable before any of them is used.
Status Target::remember(std::uint64_t needed_blocks) {
  const std::uint64_t end = space_->next_block() + needed_blocks;
  if (end > state_.high_water_block)
    state_.high_water_block = std::min(kSpaceBlocks, align_up(end, kHighWaterStepBlocks));
  return state_path_.empty() ? Status() : save_state(state_path_, state_);
}

Result<Mapping> Target::add(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path absolute = std::filesystem::absolute(path, ignored);
  IC_TRY(std::shared_ptr<const Object> object, Object::open(ignored ? path : absolute.lexically_normal().string()));
  const std::lock_guard lock(state_mutex_);
  const auto known = std::find_if(state_.objects.begin(), state_.objects.end(), [&](const KnownObject& each) {
    return each.path == object->path() && each.identity == object->identity();
  });
  if (known != state_.objects.end()) {
    const Mapping mapping{.first_block = known->first_block, .object = object};
    IC_CHECK(space_->restore(mapping));
    return mapping;
  }
  // The addresses and the object are remembered before the first host can read them.
  const std::uint64_t needed = object->blocks() + kGuardBlocks;
  state_.objects.push_back(
      {.first_block = space_->next_block(), .identity = object->identity(), .path = object->path()});
  const Status remembered = remember(needed);
  Result<Mapping> mapping = remembered.ok() ? space_->add(std::move(object)) : Result<Mapping>(remembered.error());
  if (!mapping.ok()) state_.objects.pop_back();
  return mapping;
}

Result<bool> Target::unmap(std::uint64_t first_block) {
  const std::lock_guard lock(state_mutex_);
  const bool was_there = space_->unmap(first_block);
  const auto gone = std::remove_if(state_.objects.begin(), state_.objects.end(),
                                   [&](const KnownObject& each) { return each.first_block == first_block; });
  if (gone == state_.objects.end()) return was_there;
  state_.objects.erase(gone, state_.objects.end());
  IC_CHECK(remember(0));
  return was_there;
}

std::vector<const ShardCounters*> Target::counters() const {
  std::vector<const ShardCounters*> all;
  for (const auto& shard : shards_) all.push_back(&shard->counters());
  return all;
}

}  // namespace infercluster::target
