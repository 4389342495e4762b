// SPDX-License-Identifier: Apache-2.0
#include "initiator/host.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "base/random.h"
#include "base/thread.h"
#include "base/units.h"

namespace infercluster::initiator {
namespace {

std::uint64_t random_seed() {
  std::uint64_t seed = 0;
  fill_random(std::as_writable_bytes(std::span(&seed, 1)));
  return seed;
}

std::string milliseconds_of(std::chrono::nanoseconds duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count()) + " ms";
}

}  // namespace

Host::Host(Url url, const HostOptions& options)
    : url_(std::move(url)),
      options_(options),
      counters_(options.registry, url_.address.to_string()),
      backoff_(options.backoff, random_seed()) {}

Result<std::unique_ptr<Host>> Host::connect(const Url& url, const HostOptions& options) {
  if (url.nqn.empty())
    return Error(ErrorCode::invalid_argument, url.to_string() + " names no subsystem")
        .with_hint("infercluster initiator discover lists them");
  std::unique_ptr<Host> host(new Host(url, options));
  IC_TRY(host->self_, who_am_i(options, url.nqn));
  IC_TRY(std::shared_ptr<Association> association,
         Association::connect(url, host->self_, options, *host, host->cancelled_));
  host->namespace_ = association->name_space();
  host->controller_ = association->controller();
  {
    const std::lock_guard lock(host->mutex_);
    host->association_ = std::move(association);
  }
  host->keeper_ = start_thread("nvme-keeper", [raw = host.get()] { raw->keep(); });
  host->watch_ = start_thread("nvme-deadlines", [raw = host.get()] { raw->watch_deadlines(); });
  return host;
}

Host::~Host() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  cancelled_.store(true);
  keeper_wakes_.notify_all();
  watch_wakes_.notify_all();
  if (keeper_.joinable()) keeper_.join();
  if (watch_.joinable()) watch_.join();
}

Status Host::start(BlockRead read) {
  const Clock::Duration deadline = read.deadline.value_or(options_.read_deadline);
  const Clock::TimePoint due = steady_clock().now() + deadline;
  Lock lock(mutex_);
  if (refused_) return *refused_;
  if (waiting_.size() >= kWaitingMax) {
    return Error(ErrorCode::too_large, url_.to_string() + ": " + std::to_string(kWaitingMax) + " reads wait already")
        .with_errno(ENOBUFS)
        .with_hint("Start fewer at a time");
  }
  if (free_.empty()) free_.push_back(&records_.emplace_back());
  Record& record = *free_.back();
  free_.pop_back();
  record.queued = {.first_block = read.first_block,
                   .blocks = read.blocks,
                   .memory = read.memory,
                   .deadline = due,
                   .ticket = &record};
  record.done = std::move(read.done);
  record.deadline = deadline;
  record.tries = 0;
  record.last.reset();
  waiting_.push_back(&record);
  note_deadline(record);
  dispatch(lock);
  return {};
}

void Host::note_deadline(const Record& record) {
  if (record.queued.deadline >= first_deadline_) return;
  first_deadline_ = record.queued.deadline;
  watch_wakes_.notify_one();
}

// Moves what waits into the queues' free entries. The lock is held at both ends, not in between.
void Host::dispatch(Lock& lock) {
  while (!waiting_.empty() && association_ != nullptr) {
    Record& record = *waiting_.front();
    waiting_.pop_front();
    const std::shared_ptr<Association> association = association_;
    lock.unlock();
    const Queue::Start start = association->try_start(record.queued);
    lock.lock();
    if (start == Queue::Start::started) continue;
    if (ended_ || refused_) {
      finish(lock, record, refused_ ? *refused_ : ended());
      continue;
    }
    waiting_.push_front(&record);
    note_deadline(record);
    // An entry that came free before this one waited found nothing to fill it with: then it is there now. One that
    // comes free later will dispatch, and so will whoever installs the next association.
    if (association_ == association && !association->has_room()) return;
  }
}

// Without the lock while `done` is called.
void Host::finish(Lock& lock, Record& record, const Status& status) {
  const ReadDone done = std::exchange(record.done, nullptr);
  const std::size_t bytes = record.queued.memory.size();
  free_.push_back(&record);
  lock.unlock();
  if (status.ok()) {
    counters_.reads.add();
    counters_.read_bytes.add(static_cast<double>(bytes));
  } else if (status.error().code() == ErrorCode::timed_out) {
    counters_.deadline_misses.add();
  }
  done(status);
  lock.lock();
}

void Host::read_ended(void* ticket, const ReadEnd& end) {
  Record& record = *static_cast<Record*>(ticket);
  Lock lock(mutex_);
  const std::optional<Status> status = verdict(record, end);
  if (!status) {
    counters_.retries.add();
    waiting_.push_back(&record);
    note_deadline(record);
  }
  dispatch(lock);
  if (status) finish(lock, record, *status);
}

std::optional<Status> Host::verdict(Record& record, const ReadEnd& end) {
  if (end.status.ok()) {
    proved_ = true;
    return end.status;
  }
  if (end.again == ReadEnd::Again::no) return end.status;
  if (ended_) return Status(ended());
  if (refused_) return Status(*refused_);
  record.last = end.status.error();
  if (record.queued.deadline <= steady_clock().now()) return Status(missed(record));
  if (end.again == ReadEnd::Again::counted && ++record.tries > options_.retries_max) return end.status;
  return std::nullopt;
}

Error Host::ended() const {
  return Error(ErrorCode::cancelled, url_.to_string() + ": the reading was ended").with_errno(ECANCELED);
}

Error Host::missed(const Record& record) const {
  std::string text = url_.to_string() + ": a read was not done within " + milliseconds_of(record.deadline);
  if (record.last) text += "; its connection was lost: " + record.last->message();
  if (association_ == nullptr && why_lost_) text += "; there is no connection: " + why_lost_->message();
  return Error(ErrorCode::timed_out, std::move(text))
      .with_errno(ETIMEDOUT)
      .with_hint("Is the target running, and the network between whole? Read another copy, or allow more time");
}

void Host::queue_lost(const Error& why) {
  const std::lock_guard lock(mutex_);
  lose(why);
}

void Host::lose(const Error& why) {
  if (lost_ || ended_) return;
  lost_ = true;
  why_lost_ = why;
  keeper_wakes_.notify_one();
}

void Host::watch_deadlines() {
  Lock lock(mutex_);
  while (!ended_) {
    watch_wakes_.wait_until(lock, first_deadline_, [&] { return ended_; });
    const Clock::TimePoint now = steady_clock().now();
    if (ended_ || first_deadline_ > now) continue;
    std::vector<Record*> late;
    first_deadline_ = Clock::TimePoint::max();
    const auto on_time = [&](Record* record) {
      if (record->queued.deadline > now) {
        first_deadline_ = std::min(first_deadline_, record->queued.deadline);
        return true;
      }
      late.push_back(record);
      return false;
    };
    const auto end = std::stable_partition(waiting_.begin(), waiting_.end(), on_time);
    waiting_.erase(end, waiting_.end());
    for (Record* record : late) finish(lock, *record, missed(*record));
  }
}

}  // namespace infercluster::initiator
