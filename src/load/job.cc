// SPDX-License-Identifier: Apache-2.0
#include "load/job.h"

#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "base/thread.h"
#include "load/execution.h"
#include "os/limits.h"

namespace infercluster::load {

struct Job::Impl {
  Execution execution;
  PageCache page_cache = PageCache::automatic;
  std::vector<memory::Block> blocks;  // one per unit; null: it needs none
  std::unique_ptr<Runner> runner;     // set and taken away under mutex; null: the load has ended
  std::thread thread;

  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;                    // guarded by mutex
  std::uint64_t bytes_done = 0;          // guarded by mutex; once there is no runner
  std::optional<Result<Loaded>> result;  // guarded by mutex; taken by finish()
  std::optional<PageCacheFiller::Ticket> ticket;

  Status allocate() {
    const Plan& plan = execution.prepared.plan;
    Target& target = *execution.target;
    const bool on_host = target.kind() == memory::Kind::host;
    IC_CHECK(target.check_free(plan.arena_bytes + (on_host ? execution.prepared.ring_bytes() : 0)));
    for (const Unit& unit : plan.units) {
      memory::Block block;
      if (unit.arena_bytes > 0) {
        IC_TRY(block, target.allocate(unit.arena_bytes));
      }
      blocks.push_back(std::move(block));
    }
    return {};
  }

  void run() {
    Result<Loaded> outcome = load();
    if (const auto& tell = execution.environment.ended) {
      if (outcome.ok())
        tell(outcome->report, nullptr);
      else
        tell(execution.report(*runner), &outcome.error());
    }
    // A job may be kept for its page cache to be filled: it holds no file, ring or thread by then.
    execution.prepared.readers.clear();
    execution.prepared.repository.reset();
    const std::unique_ptr<Runner> spent = take_runner();
    const std::lock_guard lock(mutex);
    result = std::move(outcome);
    ended = true;
    changed.notify_all();
  }

  std::unique_ptr<Runner> take_runner() {
    const std::lock_guard lock(mutex);
    bytes_done = runner->bytes_done();
    return std::move(runner);
  }

  void cancel() {
    const std::lock_guard lock(mutex);
    if (runner) runner->cancel();
  }

  Result<Loaded> load() {
    Status status = runner->run();
    // A file that changed explains every other error, and a mixture of two files must not get out.
    if (status.ok() || status.error().code() != ErrorCode::cancelled) IC_CHECK(check_unchanged(execution.prepared));
    if (!status.ok()) {
      blocks.clear();
      return std::move(status).error();
    }
    for (const memory::Block& block : blocks) {
      if (block.arena) IC_CHECK(block.arena->inherit_on_fork());
    }
    Loaded loaded;
    loaded.metadata = execution.prepared.repository->metadata();
    loaded.tensors = tensors();
    loaded.report = execution.report(*runner);
    loaded.report.working_bytes = execution.prepared.ring_bytes();
    loaded.report.peak_host_bytes = execution.prepared.ring_bytes();
    if (execution.target->kind() == memory::Kind::host) {
      loaded.report.working_bytes += execution.prepared.plan.padding_bytes();
      loaded.report.peak_host_bytes += execution.prepared.plan.arena_bytes;
    }
    blocks.clear();
    fill_page_cache(loaded.report);
    return loaded;
  }

  std::vector<LoadedTensor> tensors() {
    const Plan& plan = execution.prepared.plan;
    std::vector<LoadedTensor> loaded;
    loaded.reserve(plan.tensors.size());
    for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
      for (std::size_t i = plan.units[unit].first_tensor; i < plan.units[unit].last_tensor; ++i) {
        loaded.push_back(loaded_tensor(execution.prepared, i, blocks[unit]));
        if (plan.tensors[i].placement == Placement::arena) loaded.back().owner = blocks[unit].owner;
      }
    }
    return loaded;
  }

  // A direct load leaves the page cache empty: without this a second start would be slower than one through the page
  // cache.
  void fill_page_cache(Report& report) {
    if (page_cache == PageCache::bypass || execution.environment.filler == nullptr) return;
    std::vector<PageCacheFiller::File> files;
    std::uint64_t bytes = 0;
    const auto& shards = execution.prepared.repository->shards();
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const io::FileSource* source = execution.prepared.readers[i].source.get();
      if (source == nullptr || source->mode() != io::FileMode::direct) continue;
      bytes += source->size();
      files.push_back({shards[i].resolved_path, shards[i].identity});
    }
    if (files.empty()) return;
    // Well within free memory: half of it stays free.
    if (page_cache == PageCache::automatic && bytes > os::memory_limits().free() / 2) return;
    report.page_cache_fill_bytes = bytes;
    ticket = execution.environment.filler->add(std::move(files));
  }
};

Job::Job(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Job>> Job::start(std::shared_ptr<const Repository> repository, const Options& options,
                                        const Environment& environment) {
  auto impl = std::make_unique<Impl>();
  IC_TRY(impl->execution, Execution::open(std::move(repository), options, environment, Purpose::load));
  impl->page_cache = options.page_cache;
  IC_CHECK(impl->allocate());
  Impl* const self = impl.get();
  RunnerHooks hooks;
  hooks.acquire = [self](std::size_t unit) -> Result<std::optional<Acquired>> {
    return std::optional(Acquired{self->blocks[unit], nullptr});
  };
  hooks.delivered = [](std::size_t) -> Status { return {}; };
  IC_TRY(impl->runner, impl->execution.make_runner(std::move(hooks)));
  impl->thread = start_thread("ic-load", [self] { self->run(); });
  return std::unique_ptr<Job>(new Job(std::move(impl)));
}

Job::~Job() {
  impl_->cancel();
  impl_->thread.join();
}

bool Job::wait_for(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(impl_->mutex);
  return impl_->changed.wait_for(lock, timeout, [this] { return impl_->ended; });
}

void Job::cancel() {
  impl_->cancel();
}

Progress Job::progress() const {
  const std::lock_guard lock(impl_->mutex);
  const std::uint64_t done = impl_->runner ? impl_->runner->bytes_done() : impl_->bytes_done;
  return {done, impl_->execution.prepared.plan.read_bytes};
}

Result<Loaded> Job::finish() {
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait(lock, [this] { return impl_->ended; });
  if (!impl_->result) return Error(ErrorCode::invalid_argument, "the result of this load was taken before");
  Result<Loaded> result = std::move(*impl_->result);
  impl_->result.reset();
  return result;
}

bool Job::wait_for_page_cache(std::chrono::nanoseconds timeout) {
  {
    std::unique_lock lock(impl_->mutex);
    if (!impl_->changed.wait_for(lock, timeout, [this] { return impl_->ended; })) return false;
  }
  return !impl_->ticket || impl_->execution.environment.filler->wait_for(*impl_->ticket, timeout);
}

}  // namespace infercluster::load
