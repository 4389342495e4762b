// SPDX-License-Identifier: Apache-2.0
// What a checkpointer does with a fast tier above its root.
#include <limits>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/checkpointer_impl.h"
#include "checkpoint/drain_job.h"
#include "checkpoint/fast_tier.h"
#include "checkpoint/names.h"
#include "checkpoint/tier_choice.h"
#include "os/file.h"

namespace infercluster::checkpoint {
namespace {

constexpr auto kLook = std::chrono::milliseconds(100);

Result<Visible> decode_visible(const std::vector<std::string>& given) {
  Visible visible;
  for (const std::string& text : given) {
    IC_TRY(std::vector<FastPart> parts, decode_parts(text));
    visible.push_back(std::move(parts));
  }
  return visible;
}

}  // namespace

Status Checkpointer::Impl::open_fast_directories() {
  const FastTier& tier = *shared.options.fast;
  FastPlace place;
  IC_TRY(place.directory, open_fast_tier(*shared.calls, tier.path));
  IC_TRY(const os::FileIdentity upper, os::identity_of(place.directory.fd));
  IC_TRY(const os::FileIdentity lower, os::identity_of(shared.root.fd));
  if (upper.device == lower.device && upper.inode == lower.inode) {
    return Error(ErrorCode::invalid_argument, "the fast tier and the root are the same folder")
        .with_path(tier.path)
        .with_hint("Name storage of this node as the fast tier");
  }
  IC_TRY(place.rank_directory,
         open_rank_directory(*shared.calls, place.directory, static_cast<std::uint64_t>(shared.rank)));
  const Status swept = sweep(*shared.calls, place.rank_directory, {});
  if (!swept.ok()) log_warning("cannot tidy up: " + swept.error().to_string());
  fast_drain = make_drain_governor(shared.options.foreground, upper.device);
  place.write.drain = fast_drain.get();
  shared.fast = std::move(place);
  return {};
}

Status Checkpointer::Impl::open_fast() {
  const exchange::Deadline deadline = exchange::deadline_in(shared.options.call_deadline);
  IC_TRY(const std::shared_ptr<exchange::Exchange> ranks, next_exchange());
  const auto look = [this]() -> Result<std::string> {
    IC_CHECK(open_fast_directories());
    IC_TRY(const std::vector<FastPart> parts, list_parts(*shared.calls, shared.fast->directory));
    return encode(parts);
  };
  const auto own = look();
  if (!own.ok()) return ranks->abort(own.error(), 0, deadline);
  const auto decision = [this](const std::vector<std::string>& given) -> Result<std::string> {
    IC_TRY(const Visible visible, decode_visible(given));
    IC_TRY(const std::vector<Resumption> chosen, choose_resumptions(*shared.calls, shared.root, visible));
    return encode(chosen);
  };
  IC_TRY(const std::string text, ranks->decide("drains", *own, decision, deadline));
  IC_TRY(const std::vector<Resumption> resumptions, decode_resumptions(text));
  for (const Resumption& one : resumptions) IC_CHECK(resume(one));
  return {};
}

Status Checkpointer::Impl::resume(const Resumption& one) {
  DrainJob job;
  job.save = std::make_shared<Save>();
  job.report.step = one.step;
  job.report.epoch = one.epoch;
  job.report.fast = TierStatus::durable;
  job.started = steady_clock().now();
  job.begun = {io::Directory{}, one.step, one.epoch, one.save_id};
  if (shared.rank == 0) {
    IC_TRY(job.begun.directory, shared.calls->open_directory_in(shared.root, step_name(one.step)));
  }
  IC_TRY(job.ranks, shared.options.exchange->nested(++saves_));
  job.plan_hash = one.plan_hash;
  job.world = one.world;
  for (std::uint64_t part = 0; part < one.drainers.size(); ++part) {
    if (one.drainers[part] == static_cast<std::uint64_t>(shared.rank)) job.parts.push_back(part);
  }
  job.on_failure = [](const Error&) {};  // of a save of an earlier job: it is logged
  log_info("step " + std::to_string(one.step) + ": its drain to the root goes on");
  const std::lock_guard lock(mutex_);
  busy_.insert(one.step);
  fast_newest_ = one.step;
  add_drain(std::move(job));
  return {};
}

Result<std::optional<LoadPlace>> Checkpointer::Impl::choose(std::optional<std::uint64_t> step) {
  while (true) {
    const exchange::Deadline deadline = exchange::deadline_in(shared.options.call_deadline);
    IC_TRY(const std::shared_ptr<exchange::Exchange> ranks, next_exchange());
    std::vector<FastPart> parts;
    if (shared.fast) {
      {
        const std::lock_guard lock(*shared.fast->pruning);
        pinned_ = true;
      }
      auto seen = list_parts(*shared.calls, shared.fast->directory);
      if (!seen.ok()) log_warning("the fast tier cannot be read: " + seen.error().to_string());
      if (seen.ok()) parts = std::move(seen).value();
    }
    const auto decision = [&](const std::vector<std::string>& given) -> Result<std::string> {
      IC_TRY(const Visible visible, decode_visible(given));
      WantedStep wanted;
      wanted.step = step;
      wanted.stock = shared.options.stock_dcp;
      wanted.is_draining = [this](std::uint64_t draining) {
        const std::lock_guard lock(mutex_);
        return busy_.contains(draining);
      };
      IC_TRY(auto place, choose_place(*shared.calls, shared.root, visible, wanted));
      if (place && !shared.fast) place->notice.clear();
      return encode(place);
    };
    IC_TRY(const std::string text, ranks->decide("place", encode(parts), decision, deadline));
    IC_TRY(auto place, decode_place(text));
    if (place && place->kind == LoadPlace::Kind::draining) {
      IC_CHECK(wait_for_drains(place->step, std::numeric_limits<std::size_t>::max(), *ranks));
      continue;
    }
    if (place && !place->notice.empty() && shared.rank == 0)
      log_warning("step " + std::to_string(place->step) + ": " + place->notice);
    return place;
  }
}

Result<std::unique_ptr<Checkpoint>> Checkpointer::Impl::open_place(const LoadPlace& place) const {
  if (place.kind != LoadPlace::Kind::fast) return Checkpoint::open(*shared.calls, shared.root.path, place.step);
  std::vector<OpenPart> parts;
  for (std::uint64_t part = 0; part < place.world; ++part) {
    IC_TRY(OpenPart opened, open_part(*shared.calls, shared.fast->directory, part, place.step, place.save_id));
    parts.push_back(std::move(opened));
  }
  return Checkpoint::open_parts(shared.fast->directory.path, std::move(parts));
}

// What ends on another rank ends this wait too.
Status Checkpointer::Impl::wait_for_drains(std::uint64_t step, std::size_t others_max, exchange::Exchange& ranks) {
  std::unique_lock lock(mutex_);
  while (busy_.size() > others_max || busy_.contains(step)) {
    changed_.wait_for(lock, kLook);
    lock.unlock();
    IC_CHECK(ranks.check());
    lock.lock();
  }
  return {};
}

void Checkpointer::Impl::unpin_fast() {
  if (!shared.fast) return;
  const std::lock_guard lock(*shared.fast->pruning);
  pinned_ = false;
}

DrainJob Checkpointer::Impl::drain_of(SaveJob job) {
  DrainJob drain;
  drain.number = job.number;
  drain.save = std::move(job.save);
  drain.report = job.report;
  drain.started = job.started;
  drain.begun = std::move(job.begun);
  drain.ranks = std::move(job.ranks);
  drain.plan_hash = std::move(job.plan_hash);
  drain.world = static_cast<std::uint64_t>(drain.ranks->world());
  drain.parts = {static_cast<std::uint64_t>(drain.ranks->rank())};
  drain.on_failure = std::move(job.on_failure);
  return drain;
}

void Checkpointer::Impl::add_drain(DrainJob job) {
  drains_.push_back(std::move(job));
  changed_.notify_all();
  if (!drainer_.joinable()) drainer_ = start_thread("ic-drains", [this] { drain_all(); });
}

void Checkpointer::Impl::drain_all() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return drains_end_ || !drains_.empty(); });
    if (drains_.empty()) return;
    {
      DrainJob job = std::move(drains_.front());
      drains_.pop_front();
      lock.unlock();
      run_drain(shared, job);
      prune_fast(job.report.step);
      lock.lock();
      busy_.erase(busy_.find(job.report.step));
    }
    changed_.notify_all();
  }
}

// A step that did not come to the root stays, unless as many newer ones are there as are kept.
void Checkpointer::Impl::prune_fast(std::uint64_t drained) {
  const std::lock_guard pruning(*shared.fast->pruning);
  if (pinned_) return;
  std::uint64_t newest = 0;
  std::set<std::uint64_t> busy;
  {
    const std::lock_guard lock(mutex_);
    newest = fast_newest_;
    busy.insert(busy_.begin(), busy_.end());
    if (busy_.count(drained) == 1) busy.erase(drained);
  }
  const Status pruned = prune(*shared.calls, shared.fast->rank_directory, newest, shared.options.fast->retention,
                              pace_of(shared.fast->write), busy);
  if (!pruned.ok()) log_warning("cannot tidy up: " + pruned.error().to_string());
}

void Checkpointer::Impl::stop_drains() {
  {
    const std::lock_guard lock(mutex_);
    drains_end_ = true;
  }
  changed_.notify_all();
  if (drainer_.joinable()) drainer_.join();
}

Result<std::optional<LoadPlace>> Checkpointer::choose(std::optional<std::uint64_t> step) {
  return impl_->choose(step);
}

Result<std::unique_ptr<Checkpoint>> Checkpointer::open_place(const LoadPlace& place) const {
  return impl_->open_place(place);
}

}  // namespace infercluster::checkpoint
