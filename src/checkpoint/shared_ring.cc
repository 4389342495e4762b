// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/shared_ring.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <ctime>

#include "base/assert.h"
#include "base/units.h"
#include "memory/arena.h"

namespace infercluster::checkpoint {

// Zeroed memory is its first state. `rounds`: how often it was filled and emptied, twice that, and one more while it is
// full.
struct alignas(64) SharedRing::Slot {
  std::atomic<std::uint64_t> rounds;
  std::atomic<std::uint32_t> takers;
};

struct alignas(64) SharedRing::Header {
  std::atomic<std::uint32_t> changes;
  std::atomic<std::uint32_t> finished;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "the atomics lie in memory of several processes");

std::uint64_t SharedRing::bytes(std::uint64_t slots, std::uint64_t slot_bytes) {
  return align_up(sizeof(Header) + slots * sizeof(Slot), memory::kArenaAlignment) + slots * slot_bytes;
}

SharedRing::SharedRing(std::span<std::byte> memory, std::uint64_t slots, std::uint64_t slot_bytes)
    : memory_(memory), slots_(slots), slot_bytes_(slot_bytes) {
  IC_ASSERT(slots > 0 && memory.size() == bytes(slots, slot_bytes));
}

SharedRing::Header& SharedRing::header() const {
  return *reinterpret_cast<Header*>(memory_.data());  // NOLINT: zeroed bytes are one
}

SharedRing::Slot& SharedRing::slot(std::uint64_t number) const {
  return reinterpret_cast<Slot*>(memory_.data() + sizeof(Header))[number % slots_];  // NOLINT: zeroed bytes are one
}

std::byte* SharedRing::buffer(std::uint64_t number) const {
  return memory_.data() + memory_.size() - (slots_ - number % slots_) * slot_bytes_;
}

bool SharedRing::may_fill(std::uint64_t number) const {
  return slot(number).rounds.load(std::memory_order_acquire) == number / slots_ * 2;
}

void SharedRing::publish(std::uint64_t number, std::uint32_t takers) const {
  slot(number).takers.store(takers, std::memory_order_relaxed);
  slot(number).rounds.store(number / slots_ * 2 + 1, std::memory_order_release);
  tell();
}

bool SharedRing::is_filled(std::uint64_t number) const {
  return slot(number).rounds.load(std::memory_order_acquire) == number / slots_ * 2 + 1;
}

void SharedRing::release(std::uint64_t number) const {
  if (slot(number).takers.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  slot(number).rounds.store(number / slots_ * 2 + 2, std::memory_order_release);
  tell();
}

void SharedRing::finish() const {
  header().finished.fetch_add(1, std::memory_order_acq_rel);
  tell();
}

std::uint32_t SharedRing::finished() const {
  return header().finished.load(std::memory_order_acquire);
}

std::uint32_t SharedRing::changes() const {
  return header().changes.load(std::memory_order_acquire);
}

void SharedRing::wait(std::uint32_t seen, std::chrono::nanoseconds timeout) const {
  const timespec time{.tv_sec = timeout.count() / 1'000'000'000, .tv_nsec = timeout.count() % 1'000'000'000};
  ::syscall(SYS_futex, &header().changes, FUTEX_WAIT, seen, &time, nullptr, 0);
}

void SharedRing::tell() const {
  header().changes.fetch_add(1, std::memory_order_acq_rel);
  ::syscall(SYS_futex, &header().changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace infercluster::checkpoint
