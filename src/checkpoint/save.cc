// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/save.h"

#include "base/assert.h"

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

Status Save::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return status_ == SaveStatus::durable || status_ == SaveStatus::failed; });
  if (error_) return *error_;
  return {};
}

SaveReport Save::report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

void Save::advance(SaveStatus status, const SaveReport& report) {
  {
    const std::lock_guard lock(mutex_);
    IC_ASSERT(status_ < SaveStatus::durable && status != SaveStatus::failed);
    status_ = status;
    report_ = report;
  }
  changed_.notify_all();
}

void Save::fail(Error error, const SaveReport& report) {
  {
    const std::lock_guard lock(mutex_);
    IC_ASSERT(status_ < SaveStatus::durable);
    status_ = SaveStatus::failed;
    report_ = report;
    error_ = std::move(error);
  }
  changed_.notify_all();
}

}  // namespace infercluster::checkpoint
