// SPDX-License-Identifier: Apache-2.0
#include "io/thread_backend.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/thread.h"
#include "io/resident_limit.h"

namespace infercluster::io {
namespace {

constexpr unsigned kDepthMax = 4096;
constexpr unsigned kThreadsMax = 256;
// Each thread is one request in the device's queue. Eight reads of 4 MiB reach the device's speed
// (bench/load/limit: 2.75 of 2.8 GB/s); more gain nothing.
constexpr unsigned kDeviceThreads = 8;
constexpr auto kForever = std::chrono::hours(24);

// A queue of fixed capacity; it never allocates after construction.
template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t capacity) : items_(capacity) {}
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] std::size_t size() const { return count_; }
  void push(const T& item) {
    IC_ASSERT(count_ < items_.size());
    items_[(first_ + count_) % items_.size()] = item;
    ++count_;
  }
  T pop() {
    IC_ASSERT(count_ > 0);
    T item = items_[first_];
    first_ = (first_ + 1) % items_.size();
    --count_;
    return item;
  }

 private:
  std::vector<T> items_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

// What the driving thread and the workers share. Everything below `mutex` is guarded by it.
struct Shared {
  Shared(unsigned depth, unsigned resident_most)
      : resident_limit(resident_most), device_queue(depth), resident_queue(depth), results(depth) {}

  const unsigned resident_limit;  // page-cache copies at once
  std::mutex mutex;
  std::condition_variable work;
  std::condition_variable done;
  BoundedQueue<ReadOperation> device_queue;
  BoundedQueue<ReadOperation> resident_queue;
  BoundedQueue<OperationResult> results;
  unsigned resident_running = 0;
  bool woken = false;
  bool stopping = false;

  [[nodiscard]] bool runnable() const {
    return !device_queue.empty() || (!resident_queue.empty() && resident_running < resident_limit);
  }
};

void run_worker(Shared& shared) {
  std::unique_lock lock(shared.mutex);
  while (true) {
    shared.work.wait(lock, [&] { return shared.runnable() || shared.stopping; });
    if (!shared.runnable()) {
      if (shared.device_queue.empty() && shared.resident_queue.empty()) return;  // stopping, and all is done
      shared.work.wait(lock, [&] { return shared.runnable() || shared.resident_queue.empty(); });
      continue;
    }
    const bool resident = shared.device_queue.empty();
    const ReadOperation operation = resident ? shared.resident_queue.pop() : shared.device_queue.pop();
    shared.resident_running += resident ? 1 : 0;
    lock.unlock();
    const ssize_t count =
        ::pread(operation.fd, operation.memory, operation.length, static_cast<off_t>(operation.offset));
    const std::int64_t result = count >= 0 ? count : -errno;
    lock.lock();
    shared.resident_running -= resident ? 1 : 0;
    shared.results.push({.token = operation.token, .result = result});
    shared.done.notify_one();
    // This worker goes on with one of the queues; if it was the limit that held back the other one, that needs somebody
    // else.
    if (resident && !shared.device_queue.empty() && !shared.resident_queue.empty()) shared.work.notify_one();
    if (shared.stopping) shared.work.notify_all();
  }
}

class ThreadBackend final : public Backend {
 public:
  ThreadBackend(std::unique_ptr<Shared> shared, std::vector<std::thread> workers, unsigned depth)
      : shared_(std::move(shared)), workers_(std::move(workers)), depth_(depth) {}
  ~ThreadBackend() override;
  ThreadBackend(const ThreadBackend&) = delete;
  ThreadBackend& operator=(const ThreadBackend&) = delete;

  [[nodiscard]] std::string_view name() const override { return "threads"; }
  [[nodiscard]] unsigned capacity() const override { return depth_; }
  [[nodiscard]] unsigned in_flight() const override { return in_flight_; }
  [[nodiscard]] bool submit(const ReadOperation& operation) override;
  std::size_t wait(std::span<OperationResult> results, std::chrono::nanoseconds timeout) override;
  void wake() override;

 private:
  std::unique_ptr<Shared> shared_;
  std::vector<std::thread> workers_;
  unsigned depth_;
  unsigned in_flight_ = 0;
};

void stop_workers(Shared& shared, std::vector<std::thread>& workers) {
  {
    const std::lock_guard lock(shared.mutex);
    shared.stopping = true;
  }
  shared.work.notify_all();
  for (std::thread& worker : workers) worker.join();
}

ThreadBackend::~ThreadBackend() {
  if (in_forked_child()) {  // the workers stayed with the parent, and the mutex may be held by one of them
    static_cast<void>(shared_.release());
    for (std::thread& worker : workers_) worker.detach();
    return;
  }
  stop_workers(*shared_, workers_);
}

bool ThreadBackend::submit(const ReadOperation& operation) {
  IC_ASSERT(operation.length > 0 && operation.length <= kRequestBytesMax);
  if (in_flight_ == depth_) return false;
  ++in_flight_;
  {
    const std::lock_guard lock(shared_->mutex);
    (operation.hint == ReadHint::resident ? shared_->resident_queue : shared_->device_queue).push(operation);
  }
  shared_->work.notify_one();
  return true;
}

std::size_t ThreadBackend::wait(std::span<OperationResult> results, std::chrono::nanoseconds timeout) {
  IC_ASSERT(!results.empty());
  std::unique_lock lock(shared_->mutex);
  const auto ready = [&] { return !shared_->results.empty() || shared_->woken; };
  if (timeout > std::chrono::nanoseconds::zero() && !ready()) {
    shared_->done.wait_for(lock, std::min<std::chrono::nanoseconds>(timeout, kForever), ready);
  }
  shared_->woken = false;
  std::size_t count = 0;
  while (count < results.size() && !shared_->results.empty()) results[count++] = shared_->results.pop();
  in_flight_ -= static_cast<unsigned>(count);
  return count;
}

void ThreadBackend::wake() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->woken = true;
  }
  shared_->done.notify_one();
}

}  // namespace

Result<std::unique_ptr<Backend>> open_thread_backend(const BackendOptions& options) {
  const unsigned depth = std::clamp(options.depth, 1u, kDepthMax);
  const unsigned copies = resident_copies_max();
  const unsigned wanted = options.threads != 0 ? options.threads : std::max(kDeviceThreads, copies);
  auto shared = std::make_unique<Shared>(depth, copies);
  std::vector<std::thread> workers;
  const unsigned count = std::min({wanted, depth, kThreadsMax});
  workers.reserve(count);
  for (unsigned i = 0; i < count; ++i) {
    try {
      workers.push_back(start_thread("ic-read", [state = shared.get()] { run_worker(*state); }));
    } catch (const std::system_error& error) {
      if (!workers.empty()) break;  // fewer threads are slower, not wrong
      return Error::from_errno(error.code().value(), "starting a thread for reads");
    }
  }
  return std::unique_ptr<Backend>(std::make_unique<ThreadBackend>(std::move(shared), std::move(workers), depth));
}

}  // namespace infercluster::io
