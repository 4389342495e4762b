// SPDX-License-Identifier: Apache-2.0
// What a checkpointer is made of. For checkpointer.cc, checkpointer_restore.cc and checkpointer_tiers.cc alone.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>

#include "checkpoint/agreement.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/drain.h"
#include "checkpoint/drain_job.h"
#include "checkpoint/save_job.h"
#include "checkpoint/staging.h"
#include "checkpoint/tier_choice.h"

namespace infercluster::checkpoint {

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): there is one, and its members stand by who guards them
struct Checkpointer::Impl {
  Impl(std::uint64_t arena_bytes, int rank) : arenas(arena_bytes), participant_(static_cast<std::uint64_t>(rank)) {
    shared.rank = rank;
  }
  ~Impl() { stop(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Result<std::shared_ptr<const Save>> save(std::uint64_t step, const State& state, const SaveOptions& options);
  void wait_idle();
  Result<std::optional<std::uint64_t>> agree_on_latest();
  Status conclude(const Status& own);
  Result<RestoreReport> restore(const Checkpoint& checkpoint, std::span<const Target> targets,
                                const RestoreOptions& options);
  // Meets the other ranks, and goes on with the drains that an earlier job left.
  Status open_fast();
  Result<std::optional<LoadPlace>> choose(std::optional<std::uint64_t> step);
  Result<std::unique_ptr<Checkpoint>> open_place(const LoadPlace& place) const;
  void cancel();
  Status prepare(std::uint64_t bytes, int device);

  Shared shared;
  std::unique_ptr<exchange::Exchange> alone;      // where there are no other ranks
  std::unique_ptr<io::Governor> governor;         // where there is a rate to keep
  std::unique_ptr<io::DrainGovernor> drain;       // where there are signals
  std::unique_ptr<io::DrainGovernor> fast_drain;  // the same for the fast tier
  SnapshotArenas arenas;

 private:
  Result<std::shared_ptr<exchange::Exchange>> next_exchange();
  Result<std::shared_ptr<const Save>> start(SaveJob& job, const State& state, const SaveOptions& options);
  Status agree(SaveJob& job, const State& state, const SaveOptions& options);
  template <typename Decide>
  Result<Answer> ask(SaveJob& job, std::string_view tag, const std::string& bytes, const Decide& decide,
                     exchange::Deadline deadline);
  Status plan(SaveJob& job, const Answer& answer, const State& state);
  std::shared_ptr<const DurablePart> earlier();
  void enqueue(SaveJob job);
  void work();
  void stop();
  void wait_for_step(std::uint64_t step);

  Status open_fast_directories();
  Status resume(const Resumption& one);
  // Until no save of the step is on its way to the root, and at most so many of others are.
  Status wait_for_drains(std::uint64_t step, std::size_t others_max, exchange::Exchange& ranks);
  void unpin_fast();
  static DrainJob drain_of(SaveJob job);
  void add_drain(DrainJob job);  // mutex_ is held
  void drain_all();
  void prune_fast(std::uint64_t drained);
  void stop_drains();

  // The thread that saves.
  std::uint64_t saves_ = 0;
  Coordinator coordinator_;  // of use on rank 0
  Participant participant_;
  bool swept_ = false;

  std::mutex waiting_mutex_;
  std::weak_ptr<exchange::Exchange> waiting_;  // of the call of that thread; guarded by waiting_mutex_

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<SaveJob> queue_;          // guarded by mutex_
  std::multiset<std::uint64_t> busy_;  // steps on their way; guarded by mutex_
  bool stopping_ = false;              // guarded by mutex_
  std::uint64_t told_ = 0;             // saves up to this number need not be told of; guarded by mutex_
  std::uint64_t failed_number_ = 0;    // guarded by mutex_
  std::optional<Error> failure_;       // of failed_number_; guarded by mutex_
  // Of the save that was enqueued last, once it is durable. So what is referred to is there until the links to it are:
  // rank 0 removes no checkpoint that the newest one does not outlive, and that is it. Guarded by mutex_
  std::shared_ptr<const DurablePart> earlier_;
  bool links_ = true;           // between directories, as far as is known; guarded by mutex_
  std::uint64_t enqueued_ = 0;  // number of that save; guarded by mutex_
  std::thread worker_;

  std::deque<DrainJob> drains_;    // guarded by mutex_
  bool drains_end_ = false;        // no other will come; guarded by mutex_
  std::uint64_t fast_newest_ = 0;  // the step that the fast tier got last; guarded by mutex_
  std::thread drainer_;
  bool pinned_ = false;  // a load reads from the fast tier: nothing of it is pruned; guarded by shared.fast->pruning
};

}  // namespace infercluster::checkpoint
