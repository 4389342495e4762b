// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/snapshot.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "base/thread.h"
#include "base/units.h"
#include "os/limits.h"

namespace infercluster::checkpoint {
namespace {

constexpr std::uint64_t kCopyPieceBytes = 4 * kMiB;
constexpr std::uint64_t kWindowUnit = 64 * kKiB;  // a block of the checksums
constexpr unsigned kThreadsMax = 16;              // a socket's memory is busy with fewer

}  // namespace

void in_parallel(std::uint64_t count, const std::function<void(std::uint64_t)>& body) {
  std::atomic<std::uint64_t> next{0};
  const auto work = [&] {
    for (std::uint64_t i = next++; i < count; i = next++) body(i);
  };
  const auto helpers = std::min<std::uint64_t>(std::min(os::usable_processors(), kThreadsMax), count);
  std::vector<std::thread> threads;
  for (std::uint64_t i = 1; i < helpers; ++i) threads.push_back(start_thread("ic-copy", work));
  work();
  for (std::thread& thread : threads) thread.join();
}

Status populate(memory::Arena& arena) {
  std::mutex mutex;
  Status first;
  in_parallel(arena.steps(), [&](std::uint64_t step) {
    Status status = arena.populate_step(step);
    if (status.ok()) return;
    const std::lock_guard lock(mutex);
    if (first.ok()) first = std::move(status);
  });
  return first;
}

SnapshotArenas::Lease::Lease(Lease&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)), generation_(other.generation_) {}

SnapshotArenas::Lease& SnapshotArenas::Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    if (owner_ != nullptr) owner_->give_back(generation_);
    owner_ = std::exchange(other.owner_, nullptr);
    generation_ = other.generation_;
  }
  return *this;
}

SnapshotArenas::Lease::~Lease() {
  if (owner_ != nullptr) owner_->give_back(generation_);
}

std::span<std::byte> SnapshotArenas::Lease::memory() const {
  const auto& arena = owner_->generations_[generation_].arena;
  return {arena->data(), arena->bytes()};
}

Result<SnapshotArenas::Lease> SnapshotArenas::acquire(std::uint64_t bytes,
                                                      const std::shared_ptr<gpu::Device>& pin_for) {
  Lease lease;
  {
    std::unique_lock lock(mutex_);
    const auto idle = [this] {
      return std::find_if(generations_.begin(), generations_.end(), [](const auto& g) { return !g.leased; });
    };
    free_.wait(lock, [&] { return idle() != generations_.end(); });
    const auto found = idle();
    found->leased = true;
    lease.owner_ = this;
    lease.generation_ = static_cast<unsigned>(found - generations_.begin());
  }
  IC_CHECK(fit(lease.generation_, bytes, pin_for));
  return lease;
}

Status SnapshotArenas::fit(unsigned generation, std::uint64_t bytes, const std::shared_ptr<gpu::Device>& pin_for) {
  auto& [arena, pinned, leased] = generations_[generation];
  if (arena == nullptr || arena->bytes() < bytes) {
    pinned.reset();
    arena.reset();  // before the new one is there
    IC_TRY(std::shared_ptr<memory::Arena> larger,
           memory::Arena::allocate(std::max<std::uint64_t>(bytes, memory::kArenaAlignment)));
    IC_CHECK(populate(*larger));
    arena = std::move(larger);
  }
  if (pin_for == nullptr || pinned != nullptr) return {};
  auto made = gpu::Pinned::make(pin_for, arena->span());
  if (!made.ok()) {
    return std::move(made).error().with_hint(
        "Set a smaller arena_bytes, or raise the limit of locked memory (ulimit -l)");
  }
  pinned = std::move(made).value();
  return {};
}

std::uint64_t SnapshotArenas::window_bytes() {
  const std::lock_guard lock(mutex_);
  if (bytes_max_ == 0) bytes_max_ = os::memory_limits().free() / 2;
  return std::max(align_down(bytes_max_ / kGenerations, kWindowUnit), kWindowUnit);
}

void SnapshotArenas::give_back(unsigned generation) {
  {
    const std::lock_guard lock(mutex_);
    generations_[generation].leased = false;
  }
  free_.notify_all();
}

void copy_all(std::vector<StridedCopy> items) {
  std::vector<StridedCopy> parts;
  for (StridedCopy& item : items) divide(std::move(item), kCopyPieceBytes, parts);
  in_parallel(parts.size(), [&parts](std::uint64_t i) { copy(parts[i]); });
}

}  // namespace infercluster::checkpoint
