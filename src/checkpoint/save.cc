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
    case SaveStatus::durable:
      return "durable";
    case SaveStatus::failed:
      return "failed";
  }
  return "unknown";
}

SaveStatus Save::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

bool Save::has_ended() const {
  return status_ == SaveStatus::durable || status_ == SaveStatus::failed;
}

bool Save::wait_for(std::chrono::nanoseconds duration) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, duration, [this] { return has_ended(); });
}

Status Save::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return has_ended(); });
  if (error_) return *error_;
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

void Save::finish(const SaveReport& report, std::optional<Error> error) {
  {
    const std::lock_guard lock(mutex_);
    IC_ASSERT(status_ < SaveStatus::durable);
    status_ = error ? SaveStatus::failed : SaveStatus::durable;
    error_ = std::move(error);
    report_.write_seconds = report.write_seconds;
    report_.durable_seconds = report.durable_seconds;
    report_.throttled_seconds = report.throttled_seconds;
    report_.lowest_rate = report.lowest_rate;
    report_.requests_cut = report.requests_cut;
    report_.direct = report.direct;
    report_.layout = report.layout;
    report_.bytes_copied = report.bytes_copied;
    report_.link_refusal = report.link_refusal;
  }
  changed_.notify_all();
}

}  // namespace infercluster::checkpoint
