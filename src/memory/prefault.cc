// SPDX-License-Identifier: Apache-2.0
#include "memory/prefault.h"

#include "base/thread.h"

namespace infercluster::memory {

Prefaulter::Prefaulter(unsigned threads, std::function<void()> notify)
    : threads_max_(threads == 0 ? 1 : threads), notify_(std::move(notify)) {}

Prefaulter::~Prefaulter() {
  stop();
}

void Prefaulter::add(std::shared_ptr<Arena> arena, std::uint64_t bytes) {
  if (bytes == 0) return;
  const std::uint64_t steps = (bytes + kPopulateStep - 1) / kPopulateStep;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    work_.push_back({std::move(arena), 0, steps});
  }
  changed_.notify_all();
  while (threads_.size() < threads_max_) {
    threads_.push_back(start_thread("ic-prefault", [this] { run(); }));
  }
}

std::optional<Error> Prefaulter::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void Prefaulter::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    work_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Prefaulter::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !work_.empty(); });
    if (stopping_) return;
    Work& front = work_.front();
    const std::shared_ptr<Arena> arena = front.arena;
    const std::uint64_t step = front.next_step++;
    if (front.next_step == front.last_step) work_.pop_front();
    lock.unlock();
    Status populated = arena->populate_step(step);
    if (!populated.ok()) {
      const std::lock_guard again(mutex_);
      if (!error_) error_ = std::move(populated).error();
      work_.clear();
    }
    notify_();
    lock.lock();
  }
}

}  // namespace infercluster::memory
