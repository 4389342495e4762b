// SPDX-License-Identifier: Apache-2.0
// An exchange over a store. Round K of exchange X has the keys
//   JOB/in/X.K.RANK   what that rank gives
//   JOB/v/X.K         the verdict, set only where none is
// where X is "job" or the number of a nested exchange. Rank 0 collects and judges; a rank that cannot go on sets its
// cause as the verdict instead, and whoever comes second takes the first one's. So a round has one verdict, and it is
// the only thing that a waiting rank looks at.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "exchange/store.h"
#include "exchange/verdict.h"

namespace infercluster::exchange {

// What the exchanges of one job share, and what tidies up behind them. Thread-safe.
class Job {
 public:
  // `membership` lives as long as the job.
  Job(std::shared_ptr<Store> store, Member member, std::string folder, std::shared_ptr<const void> membership)
      : store_(std::move(store)),
        membership_(std::move(membership)),
        member_(std::move(member)),
        folder_(std::move(folder)) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() = default;

  [[nodiscard]] Store& store() const { return *store_; }
  [[nodiscard]] const Member& member() const { return member_; }
  [[nodiscard]] const std::string& folder() const { return folder_; }

  Status open_nested(std::uint64_t number);
  // `verdicts`: the keys that it may have left.
  void close_nested(std::uint64_t number, std::vector<std::string> verdicts);
  [[nodiscard]] std::uint64_t lowest_open() const;
  // Rank 0: removes what nested exchanges below `number` left; all ranks have closed them.
  void tidy_below(std::uint64_t number);

 private:
  const std::shared_ptr<Store> store_;
  const std::shared_ptr<const void> membership_;
  const Member member_;
  const std::string folder_;
  mutable std::mutex mutex_;
  std::uint64_t next_ = 0;                                    // guarded by mutex_
  std::set<std::uint64_t> open_;                              // guarded by mutex_
  std::map<std::uint64_t, std::vector<std::string>> closed_;  // guarded by mutex_; rank 0 only
};

// How long to look for one thing before looking for others too: longer where many ranks ask the same store.
inline Clock::Duration slice_of(int ranks_at_store) {
  return std::max<Clock::Duration>(std::chrono::milliseconds(100), ranks_at_store * std::chrono::microseconds(125));
}

class Rounds final : public Exchange {
 public:
  // `number`: of a nested exchange, already open in `job`.
  Rounds(std::shared_ptr<Job> job, std::optional<std::uint64_t> number);
  Rounds(const Rounds&) = delete;
  Rounds& operator=(const Rounds&) = delete;
  ~Rounds() override;

  [[nodiscard]] int rank() const override { return job_->member().rank; }
  [[nodiscard]] int world() const override { return job_->member().world; }
  [[nodiscard]] int called(int rank) const override { return exchange::called(job_->member().in_job, rank); }
  [[nodiscard]] int job_world() const override { return job_->member().ranks_at_store(); }
  Result<std::vector<std::string>> gather(std::string_view tag, std::string_view bytes, Deadline deadline) override;
  Result<std::string> decide(std::string_view tag, std::string_view bytes, const Decision& decision,
                             Deadline deadline) override;
  Status agree(std::string_view tag, std::string_view bytes, Deadline deadline) override;
  Status agree_watched(std::string_view tag, std::string_view bytes, const Watch& watch, Deadline deadline) override;
  Error abort(const Error& error, std::uint64_t bytes, Deadline deadline) override;
  Status check() override;
  [[nodiscard]] std::optional<Cause> cause() const override;
  Result<std::unique_ptr<Exchange>> nested(std::uint64_t number) override;

  // Called between two looks while a round waits for a rank; an error ends the wait with it, and is nobody else's
  // business. The start of a job watches for newcomers so (join.cc).
  using Interrupt = std::function<Status(int rank)>;
  Status agree_interruptible(std::string_view tag, std::string_view bytes, Deadline deadline,
                             const Interrupt& interrupt);

 private:
  struct Wanted {
    Call call;
    std::string_view tag;
    std::string_view bytes;
    std::uint64_t bytes_max;
    Deadline deadline;
    const Interrupt* interrupt = nullptr;
    const Decision* decision = nullptr;  // of Call::decide
    const Watch* watch = nullptr;
  };
  // A round's verdict, or none: then that error interrupted the wait.
  struct Outcome {
    std::optional<Verdict> verdict = {};
    std::optional<Error> interruption = {};
  };
  Result<Outcome> take_part(const Wanted& wanted);
  Result<Outcome> play(const Wanted& wanted, std::uint64_t round);
  Result<Outcome> collect(const Wanted& wanted, std::uint64_t round);
  Verdict decide_upon(const Wanted& wanted, Verdict judged) const;
  Result<Outcome> collect_one(const Wanted& wanted, std::uint64_t round, int rank, Contribution& into);
  Result<Outcome> wait_for_verdict(const Wanted& wanted, std::uint64_t round);
  Result<std::vector<int>> missing_in(std::uint64_t round);
  [[nodiscard]] Cause missing_from(const Wanted& wanted, std::vector<int> missing) const;
  Result<Outcome> conclude(std::uint64_t round, const Cause& cause);
  static Result<Outcome> look_around(const Wanted& wanted, int rank);
  Result<std::optional<Verdict>> look(std::uint64_t round, Deadline until);
  Result<Verdict> propose(std::uint64_t round, const Verdict& verdict, Deadline deadline);
  void finish(std::uint64_t round, const Verdict& verdict);
  Error end_with(const Cause& cause);
  [[nodiscard]] std::string verdict_key(std::uint64_t round) const;
  [[nodiscard]] std::string input_key(std::uint64_t round, int rank) const;

  const std::shared_ptr<Job> job_;
  const std::optional<std::uint64_t> number_;
  const std::string name_;
  std::atomic<std::uint64_t> round_{0};  // the first one without a verdict, as far as this rank knows
  mutable std::mutex mutex_;
  std::optional<Cause> cause_;  // guarded by mutex_
  // Rank 0: the lowest number of a nested exchange that any rank still has, as the last round says. Not shared.
  std::uint64_t lowest_open_ = 0;
};

}  // namespace infercluster::exchange
