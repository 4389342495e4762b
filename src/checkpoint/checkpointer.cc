// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpointer.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "base/units.h"
#include "checkpoint/agreement.h"
#include "checkpoint/checkpointer_impl.h"
#include "checkpoint/drain.h"
#include "checkpoint/live_copy.h"
#include "checkpoint/names.h"
#include "checkpoint/save_job.h"
#include "checkpoint/sources.h"
#include "checkpoint/staging.h"
#include "exchange/cause.h"
#include "exchange/wire.h"
#include "os/file.h"

namespace infercluster::checkpoint {
namespace {

// Saves that may be on their way to the root when another begins.
constexpr std::size_t kDrainsMax = 2;
constexpr auto kCancelDeadline = std::chrono::seconds(10);
constexpr std::uint64_t kHeaderBytesGuessed = kMiB;  // of a segment: some ten thousand tensors' names

// Each live generation is looked at once: what is said of the pieces of a page is said of one moment.
std::vector<Content> contents_of(const State& state) {
  std::vector<Content> contents;
  contents.reserve(state.pieces.size());
  std::unordered_map<const std::uint64_t*, std::uint64_t> seen;
  for (const HostPiece& source : state.pieces) {
    contents.push_back({source.generation, source.page});
    if (source.live_generation == nullptr) continue;
    const auto [found, first] = seen.try_emplace(source.live_generation, 0);
    if (first) found->second = load_generation(*source.live_generation);
    contents.back().generation = is_at_rest(found->second) ? std::optional(found->second) : std::nullopt;
  }
  return contents;
}

bool has_generations(const manifest::Index& index) {
  return std::any_of(index.chunks.begin(), index.chunks.end(),
                     [](const manifest::Chunk& chunk) { return chunk.generation.has_value(); });
}

}  // namespace

Result<std::shared_ptr<const Save>> Checkpointer::Impl::save(std::uint64_t step, const State& state,
                                                             const SaveOptions& options) {
  SaveJob job;
  job.started = steady_clock().now();
  job.save = std::make_shared<Save>();
  job.report.step = step;
  IC_TRY(job.ranks, next_exchange());
  job.number = saves_;
  if (shared.fast) {
    job.report.fast = TierStatus::pending;
    unpin_fast();
    IC_CHECK(wait_for_drains(step, kDrainsMax, *job.ranks));
    job.report.tier_wait_seconds = seconds_between(job.started, steady_clock().now());
  }
  const std::shared_ptr<const Save> save = job.save;
  const std::uint64_t number = job.number;
  auto started = start(job, state, options);
  if (!started.ok()) {
    if (job.begun.directory.fd.valid()) {
      const Status discarded = discard_save(*shared.calls, shared.root, job.begun);
      if (!discarded.ok()) log_warning("cannot tidy up: " + discarded.error().to_string());
    }
    return started;
  }
  if (options.wait != Wait::until_durable) return save;
  const Status durable = save->wait();
  if (durable.ok()) return save;
  const std::lock_guard lock(mutex_);
  told_ = std::max(told_, number);
  return durable.error();
}

Result<std::shared_ptr<const Save>> Checkpointer::Impl::start(SaveJob& job, const State& state,
                                                              const SaveOptions& options) {
  IC_CHECK(agree(job, state, options));
  job.save->schedule(job.report);
  log_info("step " + std::to_string(job.report.step) + ": scheduled");
  // The writer goes ahead: of a state larger than the arena it writes one part while the next is copied.
  const std::shared_ptr<Save> save = job.save;
  const std::shared_ptr<ImageWindows> image = job.image;
  const std::shared_ptr<Layout> layout = job.layout;
  SaveReport report = job.report;
  const Clock::TimePoint started = job.started;
  const std::uint64_t number = job.number;
  enqueue(std::move(job));
  if (image != nullptr) {
    Status staged = stage(*layout, state, options.wait, arenas, *image, report);
    if (!staged.ok()) {
      image->fail(staged.error());
      const Status failed = save->wait();
      const std::lock_guard lock(mutex_);
      if (failed_number_ == number) told_ = std::max(told_, number);
      return failed.ok() ? std::move(staged).error() : failed.error();
    }
  }
  report.stall_seconds = seconds_between(started, steady_clock().now());
  save->let_go(report);
  if (options.wait != Wait::until_queued || image == nullptr) save->stage();
  return std::shared_ptr<const Save>(save);
}

Status Checkpointer::Impl::agree(SaveJob& job, const State& state, const SaveOptions& options) {
  const Clock::TimePoint begin = steady_clock().now();
  const exchange::Deadline deadline = exchange::deadline_in(shared.options.call_deadline);
  Opening own;
  own.step = job.report.step;
  own.exists = options.exists;
  {
    const std::lock_guard lock(mutex_);
    if (failure_ && failed_number_ > told_) {
      own.failed_number = failed_number_;
      own.failure = exchange::encode_cause({shared.rank, 0, *failure_});
    }
  }
  Pieces pieces;
  for (const HostPiece& source : state.pieces) {
    const Status fits = check_source(source);
    if (!fits.ok()) return job.ranks->abort(fits.error(), 0, deadline);
    if (source.live_generation != nullptr && (!source.strides.empty() || source.device >= 0)) {
      const Error strided = Error(ErrorCode::invalid_argument,
                                  "a piece that may change while it is copied must be row-major, in host memory")
                                .with_tensor(source.piece.tensor);
      return job.ranks->abort(strided, 0, deadline);
    }
    pieces.push_back(source.piece);
  }
  const Status held = participant_.hold(std::move(pieces));
  if (!held.ok()) return job.ranks->abort(held.error(), 0, deadline);
  own.digest = participant_.digest();
  own.plan_hash = participant_.plan_hash();
  if (shared.rank == 0 && own.failed_number == 0) {
    wait_for_step(own.step);
    if (!std::exchange(swept_, true)) {
      std::set<std::uint64_t> busy{own.step};
      {
        const std::lock_guard lock(mutex_);
        busy.insert(busy_.begin(), busy_.end());
      }
      const Status swept = sweep(*shared.calls, shared.root, busy);
      if (!swept.ok()) log_warning("cannot tidy up: " + swept.error().to_string());
    }
    auto begun = begin_save(*shared.calls, shared.root, own.step, options.exists, random_id());
    if (!begun.ok()) return job.ranks->abort(begun.error(), 0, deadline);
    job.begun = std::move(begun).value();
  }
  const auto open = [&](const std::vector<std::string>& openings) {
    return coordinator_.open(openings, job.begun.epoch, job.begun.save_id);
  };
  IC_TRY(Answer answer, ask(job, "begin", encode(own), open, deadline));
  if (!answer.speakers.empty()) {
    const auto plan = [&](const std::vector<std::string>& texts) { return coordinator_.plan(texts); };
    IC_TRY(answer, ask(job, "pieces", participant_.text_for(answer), plan, deadline));
  }
  if (shared.rank != 0) job.begun = {io::Directory{}, own.step, answer.epoch, answer.save_id};
  job.report.epoch = job.begun.epoch;
  job.report.plan_reused = answer.reused;
  Status planned = plan(job, answer, state);
  if (!planned.ok()) return job.ranks->abort(planned.error(), 0, deadline);
  job.report.agree_seconds = seconds_between(begin, steady_clock().now());
  return {};
}

// Rank 0's answer to what all gave; a refusal is the error, the same on all ranks.
template <typename Decide>
Result<Answer> Checkpointer::Impl::ask(SaveJob& job, std::string_view tag, const std::string& bytes,
                                       const Decide& decide, exchange::Deadline deadline) {
  const auto decision = [&decide](const std::vector<std::string>& given) -> Result<std::string> {
    IC_TRY(const Answer answer, decide(given));
    return encode(answer);
  };
  IC_TRY(const std::string text, job.ranks->decide(tag, bytes, decision, deadline));
  IC_TRY(Answer answer, decode_answer(text));
  if (answer.refusal.empty()) return answer;
  {
    const std::lock_guard lock(mutex_);
    told_ = std::max(told_, answer.failed_number);
  }
  IC_TRY(const exchange::Cause cause, exchange::decode_cause(answer.refusal));
  return cause.error;
}

Status Checkpointer::Impl::plan(SaveJob& job, const Answer& answer, const State& state) {
  IC_CHECK(participant_.accept(answer));
  job.plan_hash = participant_.plan_hash();
  std::vector<std::size_t> writes = participant_.share().writes;
  job.metadata = state.metadata;
  if (participant_.share().sources) {
    auto sources = encode_sources(*participant_.share().sources);
    if (sources) job.metadata.emplace_back(kSourcesKey, *std::move(sources));
  }
  job.references = choose_references(earlier(), participant_.pieces(), contents_of(state), writes);
  IC_TRY(Layout layout, lay_out(participant_.pieces(), writes));
  for (std::size_t i = 0; i < layout.chunks.size(); ++i) {
    const HostPiece& source = state.pieces[layout.placements[i].piece];
    layout.chunks[i].generation = source.generation;
    job.pages.push_back(source.page);
  }
  job.layout = std::make_shared<Layout>(std::move(layout));
  job.report.referred = job.references.chunks.size();
  job.report.bytes_referred = job.references.bytes();
  job.report.bytes = job.layout->chunks.empty() ? 0 : job.layout->bytes;
  if (!job.layout->chunks.empty()) job.image = std::make_shared<ImageWindows>();
  return {};
}

std::shared_ptr<const DurablePart> Checkpointer::Impl::earlier() {
  const std::lock_guard lock(mutex_);
  return earlier_;
}

void Checkpointer::Impl::enqueue(SaveJob job) {
  job.on_failure = [this, number = job.number](const Error& error) {
    const std::lock_guard lock(mutex_);
    if (failure_ && failed_number_ > told_) return;  // the first stays until it was told
    failure_ = error;
    failed_number_ = number;
  };
  job.on_durable = [this, number = job.number](std::shared_ptr<const DurablePart> part) {
    if (!has_generations(part->index)) return;
    const std::lock_guard lock(mutex_);
    links_ = links_ && part->linkable;
    if (links_ && number == enqueued_) earlier_ = std::move(part);
  };
  {
    const std::lock_guard lock(mutex_);
    earlier_ = nullptr;
    enqueued_ = job.number;
    busy_.insert(job.report.step);
    queue_.push_back(std::move(job));
  }
  changed_.notify_all();
  if (!worker_.joinable()) worker_ = start_thread("ic-checkpoint", [this] { work(); });
}

void Checkpointer::Impl::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;  // stopping, and all is done
    {
      SaveJob job = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      const bool drains = run_save(shared, job);
      lock.lock();
      if (drains) {
        fast_newest_ = job.report.step;
        add_drain(drain_of(std::move(job)));
      } else {
        busy_.erase(busy_.find(job.report.step));
      }
    }
    changed_.notify_all();
  }
}

void Checkpointer::Impl::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (worker_.joinable()) worker_.join();
  stop_drains();
}

void Checkpointer::Impl::wait_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return busy_.empty(); });
}

void Checkpointer::Impl::wait_for_step(std::uint64_t step) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !busy_.contains(step); });
}

Result<std::shared_ptr<exchange::Exchange>> Checkpointer::Impl::next_exchange() {
  IC_TRY(std::shared_ptr<exchange::Exchange> ranks, shared.options.exchange->nested(++saves_));
  const std::lock_guard lock(waiting_mutex_);
  waiting_ = ranks;
  return ranks;
}

void Checkpointer::Impl::cancel() {
  std::shared_ptr<exchange::Exchange> ranks;
  {
    const std::lock_guard lock(waiting_mutex_);
    ranks = waiting_.lock();
  }
  if (ranks == nullptr) return;
  const Error told =
      ranks->abort(Error(ErrorCode::cancelled, "it was interrupted"), 0, exchange::deadline_in(kCancelDeadline));
  log_info("cancelled: " + told.to_string());
}

Status Checkpointer::Impl::prepare(std::uint64_t bytes, int device) {
  std::shared_ptr<gpu::Device> pin_for;
  if (device >= 0) {
    IC_TRY(pin_for, gpu::Device::open(device));
  }
  const std::uint64_t wanted = align_up(bytes + kHeaderBytesGuessed, memory::kArenaAlignment);
  const std::uint64_t each = std::min(wanted, arenas.window_bytes());
  wait_idle();  // both generations at once are leased below
  IC_TRY(const SnapshotArenas::Lease first, arenas.acquire(each, pin_for));
  IC_TRY(const SnapshotArenas::Lease second, arenas.acquire(each, pin_for));
  return {};
}

Checkpointer::Checkpointer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpointer::~Checkpointer() = default;

Result<std::unique_ptr<Checkpointer>> Checkpointer::open(const std::string& root, const Options& options) {
  auto impl = std::make_unique<Impl>(options.arena_bytes, options.exchange == nullptr ? 0 : options.exchange->rank());
  Shared& shared = impl->shared;
  shared.options = options;
  if (shared.options.exchange == nullptr) {
    impl->alone = exchange::make_single();
    shared.options.exchange = impl->alone.get();
  }
  shared.calls = options.calls != nullptr ? options.calls : &io::system_files();
  shared.write.layouts = options.layouts;
  if (options.layouts == nullptr && options.calls == nullptr) shared.write.layouts = &pfs::system_calls();
  shared.write.files_at_once = static_cast<unsigned>(shared.options.exchange->world());
  IC_TRY(shared.root, shared.calls->open_directory(root));
  IC_TRY(const os::FileIdentity identity, os::identity_of(shared.root.fd));
  impl->drain = make_drain_governor(options.foreground, identity.device);
  shared.write.drain = impl->drain.get();
  if (options.max_write_rate != 0) {
    impl->governor = std::make_unique<io::Governor>(
        steady_clock(), io::Governor::Limits{.foreground = 0, .fill = 0, .drain = options.max_write_rate});
    shared.write.governor = impl->governor.get();
    shared.write.device = identity.device;
  }
  if (options.fast) IC_CHECK(impl->open_fast());
  return std::unique_ptr<Checkpointer>(new Checkpointer(std::move(impl)));
}

Result<std::shared_ptr<const Save>> Checkpointer::save(std::uint64_t step, const State& state,
                                                       const SaveOptions& options) {
  return impl_->save(step, state, options);
}

void Checkpointer::wait_idle() {
  impl_->wait_idle();
}

void Checkpointer::cancel() {
  impl_->cancel();
}

Status Checkpointer::prepare(std::uint64_t bytes, int device) {
  return impl_->prepare(bytes, device);
}

Result<std::vector<std::uint64_t>> Checkpointer::steps() const {
  return committed_steps(*impl_->shared.calls, impl_->shared.root, impl_->shared.options.stock_dcp);
}

Result<std::optional<std::uint64_t>> Checkpointer::latest() const {
  return newest_whole_step(*impl_->shared.calls, impl_->shared.root, impl_->shared.options.stock_dcp);
}

}  // namespace infercluster::checkpoint
