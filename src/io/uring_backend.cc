// SPDX-License-Identifier: Apache-2.0
#include "io/uring_backend.h"

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/thread.h"
#include "io/resident_limit.h"

namespace infercluster::io {
namespace {

constexpr std::uint64_t kWakeTag = UINT64_MAX - 1;
constexpr unsigned kDepthMax = 4096;

// Best first. DEFER_TASKRUN (Linux 6.1) completes reads only when this thread waits for them, which saves it
// interruptions; with SINGLE_ISSUER the ring belongs to the thread that enables it, so it stays disabled until the
// driving thread comes.
constexpr unsigned kFlagSets[] = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_R_DISABLED | IORING_SETUP_SUBMIT_ALL,
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_R_DISABLED | IORING_SETUP_SUBMIT_ALL,
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_SUBMIT_ALL,
    0,
};

// Returns 0 or -errno.
int create_ring(unsigned entries, io_uring* ring) {
  int result = -EINVAL;
  for (const unsigned flags : kFlagSets) {
    io_uring_params parameters{};
    parameters.flags = flags;
    result = io_uring_queue_init_params(entries, ring, &parameters);
    if (result == 0 && (parameters.features & IORING_FEAT_EXT_ARG) == 0) {
      io_uring_queue_exit(ring);
      return -ENOSYS;
    }
    if (result != -EINVAL) return result;
  }
  return result;
}

// Rings count as locked memory of their user on kernels before 5.12 and again on recent ones (seen on 6.18: with 64
// KiB, five small rings at a time), and a closed ring gives its share back a little later: a second try then finds
// room.
int create_ring_patiently(unsigned entries, io_uring* ring) {
  constexpr int kTries = 10;
  int result = -ENOMEM;
  for (int i = 0; i < kTries && result == -ENOMEM; ++i) {
    if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(i));
    result = create_ring(entries, ring);
  }
  return result;
}

// A seccomp filter may allow one of the three system calls and refuse the others. A ring that is still disabled answers
// EBADFD to io_uring_enter, an enabled one 0.
int try_system_calls(const io_uring& ring) {
  const auto fd = static_cast<unsigned>(ring.ring_fd);
  const int entered = io_uring_enter(fd, 0, 0, 0, nullptr);
  if (entered < 0 && entered != -EBADFD) return entered;
  alignas(io_uring_probe) std::array<std::byte, sizeof(io_uring_probe)> probe{};
  const int registered = io_uring_register(fd, IORING_REGISTER_PROBE, probe.data(), 0);
  return registered == -EPERM || registered == -EACCES || registered == -ENOSYS ? registered : 0;
}

// Returns 0 or -errno.
int initialise_ring(unsigned entries, io_uring* ring) {
  int result = create_ring_patiently(entries, ring);
  if (result != 0) return result;
  result = try_system_calls(*ring);
  if (result != 0) io_uring_queue_exit(ring);
  return result;
}

// Returns 0 or -errno. liburing 2.3 declares io_uring_enable_rings, and its shared library lacks it.
int enable_ring(io_uring* ring) {
  if ((ring->flags & IORING_SETUP_R_DISABLED) == 0) return 0;
  return io_uring_register(static_cast<unsigned>(ring->ring_fd), IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
}

__kernel_timespec timespec_of(std::chrono::nanoseconds duration) {
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(duration);
  return {.tv_sec = whole.count(), .tv_nsec = (duration - whole).count()};
}

class UringBackend final : public Backend {
 public:
  UringBackend(const io_uring& ring, Fd wake_fd, unsigned depth)
      : ring_(ring),
        wake_fd_(std::move(wake_fd)),
        resident_limit_(resident_copies_max()),
        slots_(depth),
        deferred_(depth) {
    free_.reserve(depth);
    for (unsigned i = depth; i > 0; --i) free_.push_back(i - 1);
  }
  ~UringBackend() override;
  UringBackend(const UringBackend&) = delete;
  UringBackend& operator=(const UringBackend&) = delete;

  [[nodiscard]] std::string_view name() const override { return "io_uring"; }
  [[nodiscard]] unsigned capacity() const override { return static_cast<unsigned>(slots_.size()); }
  [[nodiscard]] unsigned in_flight() const override { return capacity() - static_cast<unsigned>(free_.size()); }
  [[nodiscard]] bool submit(const ReadOperation& operation) override;
  std::size_t wait(std::span<OperationResult> results, std::chrono::nanoseconds timeout) override;
  void wake() override;

 private:
  struct Slot {
    std::uint64_t token = 0;
    ReadHint hint = ReadHint::device;
  };

  void become_driver();
  void queue(const ReadOperation& operation, unsigned slot);
  void prepare();
  std::size_t reap(std::span<OperationResult> results);
  int enter(std::chrono::nanoseconds timeout);
  void finish(const io_uring_cqe& completion, OperationResult* result);

  io_uring ring_;
  Fd wake_fd_;
  unsigned resident_limit_;
  unsigned resident_running_ = 0;
  std::vector<Slot> slots_;
  std::vector<unsigned> free_;
  struct Deferred {
    ReadOperation operation;
    unsigned slot = 0;
  };
  std::vector<Deferred> deferred_;  // ring of resident operations that wait for their turn
  std::size_t deferred_first_ = 0;
  std::size_t deferred_count_ = 0;
  bool enabled_ = false;
  bool wake_armed_ = false;
  bool woken_ = false;
  std::thread::id driver_;
};

UringBackend::~UringBackend() {
  if (!in_forked_child()) {
    std::vector<OperationResult> results(capacity());
    while (in_flight() > 0) wait(results, std::chrono::seconds(1));
  }
  io_uring_queue_exit(&ring_);
}

void UringBackend::become_driver() {
  if (!enabled_) {
    driver_ = std::this_thread::get_id();
    const int result = enable_ring(&ring_);
    if (result != 0) log_error("io_uring: enabling the ring failed: " + std::to_string(-result));
    IC_ASSERT(result == 0);
    // Reads that cannot be queued without blocking (network mounts, cold buffered reads) each hold a kernel worker
    // while they wait; the default of four per processor would cut the depth. An older kernel without the call keeps
    // its default.
    unsigned workers[2] = {capacity(), 0};
    static_cast<void>(io_uring_register_iowq_max_workers(&ring_, workers));
    enabled_ = true;
  }
  IC_ASSERT(driver_ == std::this_thread::get_id());
}

bool UringBackend::submit(const ReadOperation& operation) {
  IC_ASSERT(operation.length > 0 && operation.length <= kRequestBytesMax);
  if (free_.empty()) return false;
  become_driver();
  const unsigned slot = free_.back();
  free_.pop_back();
  slots_[slot] = {.token = operation.token, .hint = operation.hint};
  if (operation.hint == ReadHint::resident && resident_running_ >= resident_limit_) {
    deferred_[(deferred_first_ + deferred_count_) % deferred_.size()] = {.operation = operation, .slot = slot};
    ++deferred_count_;
    return true;
  }
  queue(operation, slot);
  return true;
}

void UringBackend::queue(const ReadOperation& operation, unsigned slot) {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  IC_ASSERT(entry != nullptr);  // the ring has room for every slot and the wake-up
  io_uring_prep_read(entry, operation.fd, operation.memory, operation.length, operation.offset);
  // Else the submitting thread would do all the copying: with cold buffered reads (4 MiB x 16) that gave 0.3 to 1.5
  // GB/s on the machine of bench/load, against 1.0 to 1.5.
  if (operation.hint != ReadHint::device) io_uring_sqe_set_flags(entry, IOSQE_ASYNC);
  if (operation.hint == ReadHint::resident) ++resident_running_;
  io_uring_sqe_set_data64(entry, slot);
}

// Queues what must be in the ring before a wait.
void UringBackend::prepare() {
  while (deferred_count_ > 0 && resident_running_ < resident_limit_) {
    const Deferred& next = deferred_[deferred_first_];
    queue(next.operation, next.slot);
    deferred_first_ = (deferred_first_ + 1) % deferred_.size();
    --deferred_count_;
  }
  if (wake_armed_) return;
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  IC_ASSERT(entry != nullptr);
  // A poll, not a read: it owns no memory that an abandoned ring could write.
  io_uring_prep_poll_add(entry, wake_fd_.get(), POLLIN);
  io_uring_sqe_set_data64(entry, kWakeTag);
  wake_armed_ = true;
}

void UringBackend::finish(const io_uring_cqe& completion, OperationResult* result) {
  const auto slot = static_cast<unsigned>(completion.user_data);
  IC_ASSERT(slot < slots_.size());
  *result = {.token = slots_[slot].token, .result = completion.res};
  if (slots_[slot].hint == ReadHint::resident) --resident_running_;
  free_.push_back(slot);
}

std::size_t UringBackend::reap(std::span<OperationResult> results) {
  std::size_t count = 0;
  io_uring_cqe* completion = nullptr;
  while (count < results.size() && io_uring_peek_cqe(&ring_, &completion) == 0 && completion != nullptr) {
    if (completion->user_data == kWakeTag) {
      std::uint64_t wakes = 0;
      static_cast<void>(::read(wake_fd_.get(), &wakes, sizeof wakes));  // EAGAIN: nothing to clear
      wake_armed_ = false;
      woken_ = true;
    } else {
      finish(*completion, &results[count++]);
    }
    io_uring_cqe_seen(&ring_, completion);
  }
  return count;
}

// Submits what is queued and waits for one completion. Returns 0 or -errno (ETIME, EINTR, EAGAIN, ...).
int UringBackend::enter(std::chrono::nanoseconds timeout) {
  if (timeout <= std::chrono::nanoseconds::zero()) return std::min(0, io_uring_submit_and_get_events(&ring_));
  __kernel_timespec limit = timespec_of(timeout);
  io_uring_cqe* completion = nullptr;
  return std::min(0, io_uring_submit_and_wait_timeout(&ring_, &completion, 1, &limit, nullptr));
}

std::size_t UringBackend::wait(std::span<OperationResult> results, std::chrono::nanoseconds timeout) {
  IC_ASSERT(!results.empty());
  become_driver();
  timeout = std::min<std::chrono::nanoseconds>(timeout, std::chrono::hours(24));
  const auto deadline = infercluster::steady_clock().now() + timeout;
  woken_ = false;
  std::size_t count = reap(results);
  if (count > 0 || woken_) timeout = std::chrono::nanoseconds::zero();
  while (true) {
    prepare();
    const int result = enter(timeout);
    count += reap(results.subspan(count));
    const bool starved = result == -EAGAIN || result == -EBUSY || result == -ENOMEM;
    if (result != 0 && result != -ETIME && result != -EINTR && !starved) {
      log_error("io_uring_enter failed with errno " + std::to_string(-result));
      IC_FAIL("io_uring_enter failed");
    }
    // liburing says ETIME also where it gave up after a second look, so only the clock tells whether the time is over.
    if (count > 0 || woken_) break;
    if (starved)
      std::this_thread::yield();  // the kernel lacks memory for requests; those in flight will give some back
    if (timeout <= std::chrono::nanoseconds::zero()) break;
    timeout = std::max(deadline - infercluster::steady_clock().now(), std::chrono::nanoseconds::zero());
  }
  // A completed page-cache copy makes room for the next one: start it now rather than at the caller's next wait.
  if (deferred_count_ > 0 && resident_running_ < resident_limit_) {
    prepare();
    static_cast<void>(io_uring_submit(&ring_));
  }
  return count;
}

void UringBackend::wake() {
  const std::uint64_t one = 1;
  static_cast<void>(::write(wake_fd_.get(), &one, sizeof one));  // EAGAIN: 2^64 wake-ups are pending, which is enough
}

}  // namespace

Result<std::unique_ptr<Backend>> open_uring_backend(const BackendOptions& options) {
  const unsigned depth = std::clamp(options.depth, 1u, kDepthMax);
  Fd wake_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd.valid()) return Error::from_errno(errno, "eventfd");
  io_uring ring{};
  const int result = initialise_ring(depth + 1, &ring);
  if (result != 0) return Error::from_errno(-result, "io_uring_setup");
  static_cast<void>(io_uring_ring_dontfork(&ring));
  return std::unique_ptr<Backend>(std::make_unique<UringBackend>(ring, std::move(wake_fd), depth));
}

Status try_uring() {
  io_uring ring{};
  const int result = initialise_ring(1, &ring);
  if (result != 0) return Error::from_errno(-result, "io_uring_setup");
  io_uring_queue_exit(&ring);
  return {};
}

}  // namespace infercluster::io
