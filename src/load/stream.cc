// SPDX-License-Identifier: Apache-2.0
#include "load/stream.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/thread.h"
#include "load/block_pool.h"
#include "load/execution.h"

namespace infercluster::load {

struct Stream::Impl {
  Execution execution;
  std::shared_ptr<BlockPool> pool;
  std::unique_ptr<Runner> runner;
  std::thread thread;
  std::vector<memory::Block> blocks;      // of units being filled; the runner's thread alone
  std::atomic<std::uint64_t> filling{0};  // units that have memory and are not delivered

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<LoadedTensor> ready;  // guarded by mutex
  bool starved = false;            // guarded by mutex: the runner found the window full
  bool ended = false;              // guarded by mutex
  std::optional<Error> error;      // guarded by mutex
  Report report;                   // guarded by mutex
  std::uint64_t donated = 0;       // guarded by mutex

  Result<std::optional<Acquired>> acquire(std::size_t unit) {
    const std::uint64_t bytes = execution.prepared.plan.units[unit].arena_bytes;
    if (bytes == 0) return std::optional<Acquired>(Acquired{});
    filling.fetch_add(1);
    IC_TRY(std::optional<Acquired> acquired, pool->acquire(bytes));
    const std::lock_guard lock(mutex);
    starved = !acquired;
    if (starved) {
      filling.fetch_sub(1);
      changed.notify_all();
      return acquired;
    }
    blocks[unit] = acquired->block;
    return acquired;
  }

  Status delivered(std::size_t index) {
    const Unit& unit = execution.prepared.plan.units[index];
    const memory::Block block = std::move(blocks[index]);
    if (block.arena) IC_CHECK(block.arena->inherit_on_fork());
    const std::lock_guard lock(mutex);
    // All under the lock: a consumer must not take a block for kept that is only on its way to it.
    const std::shared_ptr<void> lease = block ? pool->lease(block) : nullptr;
    if (block) filling.fetch_sub(1);
    for (std::size_t i = unit.first_tensor; i < unit.last_tensor; ++i) {
      ready.push_back(loaded_tensor(execution.prepared, i, block));
      if (execution.prepared.plan.tensors[i].placement == Placement::arena) ready.back().owner = lease;
    }
    changed.notify_all();
    return {};
  }

  void run() {
    Status status = runner->run();
    if (status.ok() || status.error().code() != ErrorCode::cancelled) {
      if (Status unchanged = check_unchanged(execution.prepared); !unchanged.ok()) status = std::move(unchanged);
    }
    const std::lock_guard lock(mutex);
    report = execution.report(*runner);
    report.peak_host_bytes = execution.prepared.ring_bytes();
    if (execution.target->kind() == memory::Kind::host) report.peak_host_bytes += pool->peak_bytes();
    report.working_bytes = report.peak_host_bytes;
    if (!status.ok() && !error) error = std::move(status).error();
    if (const auto& tell = execution.environment.ended) tell(report, error ? &*error : nullptr);
    ended = true;
    changed.notify_all();
  }

  // The consumer waits, nothing is on its way, and the window is full: it keeps what it was given. Called with the lock
  // held.
  void donate() {
    starved = false;
    auto count = pool->donate_leased();
    if (!count.ok()) {
      error = std::move(count).error();
      runner->cancel();
      return;
    }
    donated += *count;
    runner->wake();
  }
};

Stream::Stream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Stream>> Stream::start(std::shared_ptr<const Repository> repository, const Options& options,
                                              const Environment& environment) {
  if (!options.into.empty()) {
    return Error(ErrorCode::invalid_argument, "a stream yields memory of its own: `into` is for load");
  }
  auto impl = std::make_unique<Impl>();
  IC_TRY(impl->execution, Execution::open(std::move(repository), options, environment, Purpose::stream));
  Impl* const self = impl.get();
  const Prepared& prepared = self->execution.prepared;
  impl->blocks.resize(prepared.plan.units.size());
  impl->pool =
      std::make_shared<BlockPool>(self->execution.target, prepared.window - prepared.ring_bytes() - kBookkeepingBytes,
                                  [self] { self->runner->wake(); });
  RunnerHooks hooks;
  hooks.acquire = [self](std::size_t unit) { return self->acquire(unit); };
  hooks.delivered = [self](std::size_t unit) { return self->delivered(unit); };
  IC_TRY(impl->runner, impl->execution.make_runner(std::move(hooks)));
  impl->thread = start_thread("ic-stream", [self] { self->run(); });
  return std::unique_ptr<Stream>(new Stream(std::move(impl)));
}

Stream::~Stream() {
  impl_->runner->cancel();
  impl_->thread.join();
  impl_->pool->detach();
}

Result<Stream::Next> Stream::next(std::chrono::nanoseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::unique_lock lock(impl_->mutex);
  while (true) {
    if (impl_->error && (impl_->ended || impl_->ready.empty())) {
      impl_->ready.clear();
      return *impl_->error;
    }
    if (!impl_->ready.empty()) {
      Next next{State::tensor, std::move(impl_->ready.front())};
      impl_->ready.pop_front();
      return next;
    }
    if (impl_->ended) return Next{State::ended, std::nullopt};
    if (impl_->starved && impl_->filling.load() == 0) impl_->donate();
    if (impl_->error) continue;
    if (impl_->changed.wait_until(lock, deadline) == std::cv_status::timeout && impl_->ready.empty() && !impl_->ended) {
      return Next{};
    }
  }
}

void Stream::cancel() {
  impl_->runner->cancel();
}

Progress Stream::progress() const {
  return {impl_->runner->bytes_done(), impl_->execution.prepared.plan.read_bytes};
}

Report Stream::report() const {
  const std::lock_guard lock(impl_->mutex);
  Report report = impl_->report;
  report.donated_blocks = impl_->donated;
  return report;
}

}  // namespace infercluster::load
