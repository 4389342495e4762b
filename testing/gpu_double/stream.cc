// SPDX-License-Identifier: Apache-2.0
#include "testing/gpu_double/stream.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

#include "testing/gpu_double/counters.h"
#include "testing/gpu_double/unseen.h"

namespace infercluster::gpu_double {
namespace {

struct Ledger {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t threads = 0;  // guarded by mutex
};

Ledger& ledger() {
  static Ledger& instance = *new Ledger;  // never destroyed: workers may outlive main()
  return instance;
}

void enter_ledger() {
  const std::scoped_lock lock(ledger().mutex);
  ++ledger().threads;
  ++counters().threads;
}

void leave_ledger() {
  const std::scoped_lock lock(ledger().mutex);
  --ledger().threads;
  --counters().threads;
  ledger().changed.notify_all();
}

// The program's signals are for the program's threads.
std::thread start_without_signals(std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), "gpu-double");
  return thread;
}

}  // namespace

void Gate::shut() {
  const std::scoped_lock lock(mutex_);
  shut_ = true;
}

void Gate::open() {
  const std::scoped_lock lock(mutex_);
  shut_ = false;
  changed_.notify_all();
}

void Gate::pass() {
  if (!shut_.load(std::memory_order_relaxed)) return;
  const Unseen unseen;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !shut_; });
}

Gate& gate() {
  static Gate& instance = *new Gate;  // never destroyed: workers may outlive main()
  return instance;
}

void wait_for_no_threads() {
  std::unique_lock lock(ledger().mutex);
  ledger().changed.wait(lock, [] { return ledger().threads == 0; });
}

std::optional<Stream::Sequence> Stream::submit(std::function<void()> operation) {
  const std::scoped_lock lock(mutex_);
  if (closed_) return std::nullopt;
  queue_.push_back(std::move(operation));
  ++submitted_;
  if (!thread_.joinable()) {
    enter_ledger();
    thread_ = start_without_signals([self = shared_from_this()] { self->run(); });
  }
  changed_.notify_all();
  return submitted_;
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !queue_.empty() || closed_; });
    if (queue_.empty()) break;
    std::function<void()> operation = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    gate().pass();
    operation();
    operation = nullptr;  // what it holds goes before anyone sees it completed
    lock.lock();
    ++completed_;
    changed_.notify_all();
  }
  lock.unlock();
  leave_ledger();
}

Stream::Sequence Stream::submitted() const {
  const std::scoped_lock lock(mutex_);
  return submitted_;
}

bool Stream::reached(Sequence sequence) const {
  const std::scoped_lock lock(mutex_);
  return completed_ >= sequence;
}

void Stream::wait(Sequence sequence) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this, sequence] { return completed_ >= sequence; });
}

bool Stream::close() {
  std::unique_lock lock(mutex_);
  closed_ = true;
  const bool idle = completed_ == submitted_;
  std::thread thread = std::move(thread_);
  changed_.notify_all();
  lock.unlock();
  if (thread.joinable()) {
    if (idle) {
      thread.join();
    } else {
      thread.detach();
    }
  }
  return idle;
}

}  // namespace infercluster::gpu_double
