// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/save.h"

#include "base/assert.h"
#include "base/log.h"

namespace infercluster::checkpoint {

std::string_view name_of(SaveStatus status) {
  switch (status) {
    case SaveStatus::scheduled:
      return "scheduled";
    case SaveStatus::staged:
      return "staged";
    case SaveStatus::fast:
      return "fast";
    case SaveStatus::durable:
      return "durable";
    case SaveStatus::failed:
      return "failed";
  }
  return "unknown";
}

std::string_view name_of(TierStatus status) {
  switch (status) {
    case TierStatus::pending:
      return "pending";
    case TierStatus::durable:
      return "durable";
    case TierStatus::failed:
      return "failed";
    case TierStatus::left_out:
      return "left out";
  }
  return "unknown";
}

SaveStatus Save::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

TierStatus Save::status_on(Tier tier) const {
  const std::lock_guard lock(mutex_);
  return status_on_locked(tier);
}

TierStatus Save::status_on_locked(Tier tier) const {
  const bool has_fast = report_.fast && *report_.fast != TierStatus::left_out;
  if (tier == Tier::fast && has_fast) return *report_.fast;
  if (status_ == SaveStatus::durable) return TierStatus::durable;
  return status_ == SaveStatus::failed ? TierStatus::failed : TierStatus::pending;
}

bool Save::wait_for(std::chrono::nanoseconds duration, Tier tier) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, duration, [&] { return status_on_locked(tier) != TierStatus::pending; });
}

Status Save::wait(Tier tier) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return status_on_locked(tier) != TierStatus::pending; });
  if (error_ && status_on_locked(tier) == TierStatus::failed) return *error_;
  return {};
}

Status Save::wait_until_staged() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return status_ != SaveStatus::scheduled; });
  if (error_) return *error_;
  return {};
}

SaveReport Save::report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

void Save::schedule(const SaveReport& report) {
  const std::lock_guard lock(mutex_);
  report_ = report;
}

void Save::let_go(const SaveReport& report) {
  const std::lock_guard lock(mutex_);
  report_.stall_seconds = report.stall_seconds;
  report_.arena_wait_seconds = report.arena_wait_seconds;
  report_.copy_seconds = report.copy_seconds;
  report_.waves = report.waves;
}

void Save::stage() {
  {
    const std::lock_guard lock(mutex_);
    if (status_ != SaveStatus::scheduled) return;
    status_ = SaveStatus::staged;
    log_info("step " + std::to_string(report_.step) + ": staged");
  }
  changed_.notify_all();
}

void Save::reach_fast(const SaveReport& report) {
  {
    const std::lock_guard lock(mutex_);
    IC_ASSERT(status_ < SaveStatus::fast);
    status_ = SaveStatus::fast;
    take(report);
  }
  changed_.notify_all();
}

void Save::finish(const SaveReport& report, std::optional<Error> error) {
  {
    const std::lock_guard lock(mutex_);
    IC_ASSERT(status_ < SaveStatus::durable);
    status_ = error ? SaveStatus::failed : SaveStatus::durable;
    take(report);
    if (error && report_.fast == TierStatus::pending) report_.fast = TierStatus::failed;
    error_ = std::move(error);
  }
  changed_.notify_all();
}

void Save::take(const SaveReport& report) {
  report_.write_seconds = report.write_seconds;
  report_.durable_seconds = report.durable_seconds;
  report_.throttled_seconds = report.throttled_seconds;
  report_.lowest_rate = report.lowest_rate;
  report_.requests_cut = report.requests_cut;
  report_.direct = report.direct;
  report_.layout = report.layout;
  report_.bytes_copied = report.bytes_copied;
  report_.link_refusal = report.link_refusal;
  report_.fast = report.fast;
  report_.notice = report.notice;
  report_.fast_seconds = report.fast_seconds;
  report_.drain_seconds = report.drain_seconds;
  report_.bytes_drained = report.bytes_drained;
  report_.bytes_resumed = report.bytes_resumed;
}

}  // namespace infercluster::checkpoint
