// SPDX-License-Identifier: Apache-2.0
// What keeps a host connected. One thread does it, so that nobody else ever waits for a target that is gone.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "initiator/host.h"

namespace infercluster::initiator {
namespace {

// Nothing that time would heal.
bool for_good(const Error& error) {
  switch (error.code()) {
    case ErrorCode::invalid_argument:
    case ErrorCode::not_found:
    case ErrorCode::permission:
    case ErrorCode::unsupported:
    case ErrorCode::changed:
      return true;
    default:
      return false;
  }
}

}  // namespace

void Host::keep() {
  Lock lock(mutex_);
  while (!ended_) {
    keeper_wakes_.wait_for(lock, options_.keep_alive / 2, [&] { return ended_ || lost_; });
    if (ended_) break;
    if (refused_) continue;
    if (!lost_) {
      const std::shared_ptr<Association> association = association_;
      lock.unlock();
      const Status alive = association->keep_alive();
      lock.lock();
      // Without its controller the queues are of no use either: their reads go elsewhere now, not at their deadlines.
      if (!alive.ok()) lose(alive.error());
    }
    if (lost_ && !ended_) connect_anew(lock);
  }
  const std::shared_ptr<Association> association = std::exchange(association_, nullptr);
  const bool whole = !lost_;
  lock.unlock();
  if (association != nullptr) {
    association->end();
    if (whole) association->say_goodbye();
  }
  lock.lock();
  fail_waiting(lock, ended());
}

void Host::connect_anew(Lock& lock) {
  counters_.connections_lost.add();
  const std::shared_ptr<Association> old = std::exchange(association_, nullptr);
  lock.unlock();
  log_warning(url_.to_string() + ": the connection is lost and is made anew: " + why_lost_->message());
  old->end();
  lock.lock();
  if (std::exchange(proved_, false)) backoff_.proved();
  while (!ended_) {
    keeper_wakes_.wait_until(lock, backoff_.next(steady_clock().now()), [&] { return ended_; });
    if (ended_) return;
    lost_ = false;  // what is lost from here on is the next one
    lock.unlock();
    Result<std::shared_ptr<Association>> next = attempt();
    lock.lock();
    if (next.ok()) {
      association_ = *std::move(next);
      counters_.reconnects.add();
      dispatch(lock);
      return;
    }
    why_lost_ = next.error();
    if (for_good(next.error())) {
      refused_ = next.error();
      lost_ = false;
      fail_waiting(lock, *refused_);
      return;
    }
  }
}

Result<std::shared_ptr<Association>> Host::attempt() {
  IC_TRY(std::shared_ptr<Association> next, Association::connect(url_, self_, options_, *this, cancelled_));
  const Namespace& found = next->name_space();
  if (found.uuid != namespace_.uuid || found.blocks != namespace_.blocks || found.block_bits != namespace_.block_bits) {
    next->end();
    return Error(ErrorCode::changed, url_.to_string() + ": the namespace is another one now, with UUID " +
                                         nvme::to_string(found.uuid) + " and not " + nvme::to_string(namespace_.uuid))
        .with_errno(ESTALE)
        .with_hint("What was at these addresses is gone: connect anew, and ask the target where its objects are");
  }
  return next;
}

void Host::fail_waiting(Lock& lock, const Error& why) {
  while (!waiting_.empty()) {
    Record& record = *waiting_.front();
    waiting_.pop_front();
    finish(lock, record, why);
  }
}

}  // namespace infercluster::initiator
