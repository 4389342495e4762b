// SPDX-License-Identifier: Apache-2.0
#include "testing/gpu_double/device_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "testing/gpu_double/counters.h"
#include "testing/gpu_double/fault_plan.h"
#include "testing/gpu_double/unseen.h"

namespace infercluster::gpu_double {
namespace {

constexpr std::size_t kArenaBytes = std::size_t{32} << 30;
constexpr std::size_t kSmallAlign = 256;
constexpr std::size_t kLargeBytes = std::size_t{1} << 20;
constexpr std::size_t kLargeAlign = std::size_t{2} << 20;
constexpr std::size_t kGuardBytes = 4096;  // between allocations: a copy over the end is never inside the next one

void* map(int protection) {
  void* mapped = ::mmap(nullptr, kArenaBytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return mapped == MAP_FAILED ? nullptr : mapped;
}

bool overlap(Address a, std::size_t a_bytes, Address b, std::size_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

bool DeviceMemory::reserve() {
  if (bytes_ != nullptr) return true;
  void* addresses = map(PROT_NONE);
  void* store = map(PROT_READ | PROT_WRITE);
  if (addresses == nullptr || store == nullptr) return false;  // what was mapped stays until the process ends
  begin_ = std::bit_cast<Address>(addresses);
  next_ = begin_;
  bytes_ = static_cast<char*>(store);
  return true;
}

std::optional<Address> DeviceMemory::place_from(Address from, std::size_t bytes) {
  const bool large = bytes >= kLargeBytes;
  const std::size_t align = large ? kLargeAlign : kSmallAlign;
  Address at = from;
  auto next = allocations_.lower_bound(from);
  while (true) {
    at = (at + align - 1) / align * align;
    if (!large && at % (2 * kSmallAlign) == 0) at += kSmallAlign;  // aligned to 256 bytes and not to 512
    if (at - begin_ > kArenaBytes || bytes + kGuardBytes > kArenaBytes - (at - begin_)) return std::nullopt;
    if (next == allocations_.end() || at + bytes + kGuardBytes <= next->first) return at;
    at = next->first + next->second.bytes + kGuardBytes;
    ++next;
  }
}

std::optional<Address> DeviceMemory::place(std::size_t bytes) {
  auto at = place_from(next_, bytes);
  if (!at) at = place_from(begin_, bytes);
  if (at) next_ = *at + bytes + kGuardBytes;
  return at;
}

std::optional<Address> DeviceMemory::allocate(std::size_t bytes, std::uint64_t context, std::uint64_t limit_bytes) {
  std::optional<Address> at;
  {
    const std::scoped_lock lock(mutex_);
    if (bytes > kArenaBytes || allocated_bytes_ > limit_bytes || bytes > limit_bytes - allocated_bytes_) return at;
    if (!reserve()) return at;
    at = place(bytes);
    if (!at) return at;
    allocations_.emplace(*at, Allocation{*at, bytes, context});
    allocated_bytes_ += bytes;
    ++counters().allocations;
    ++counters().allocations_made;
    counters().allocated_bytes += bytes;
    const std::uint64_t now = counters().allocated_bytes;
    if (now > counters().allocated_bytes_peak) counters().allocated_bytes_peak = now;
  }
  poison(Rows{*at, bytes, bytes, 1});
  return at;
}

void DeviceMemory::drop(std::map<Address, Allocation>::iterator allocation) {
  const Allocation gone = allocation->second;
  allocations_.erase(allocation);
  allocated_bytes_ -= gone.bytes;
  --counters().allocations;
  counters().allocated_bytes -= gone.bytes;
  constexpr Address kPage = 4096;  // whole pages that are this allocation's alone go back to the system
  const Address first = (gone.address - begin_ + kPage - 1) / kPage * kPage;
  const Address last = (gone.address - begin_ + gone.bytes) / kPage * kPage;
  if (first < last) ::madvise(bytes_ + first, last - first, MADV_DONTNEED);
}

bool DeviceMemory::release(Address address) {
  const std::scoped_lock lock(mutex_);
  const auto found = allocations_.find(address);
  if (found == allocations_.end()) return false;
  drop(found);
  return true;
}

std::size_t DeviceMemory::release_all_of(std::uint64_t context) {
  const std::scoped_lock lock(mutex_);
  std::size_t count = 0;
  for (auto next = allocations_.begin(); next != allocations_.end();) {
    const auto allocation = next++;
    if (allocation->second.context != context) continue;
    drop(allocation);
    ++count;
  }
  return count;
}

std::uint64_t DeviceMemory::allocated_bytes() const {
  const std::scoped_lock lock(mutex_);
  return allocated_bytes_;
}

bool DeviceMemory::owns(Address address) const {
  const std::scoped_lock lock(mutex_);
  return bytes_ != nullptr && address >= begin_ && address - begin_ < kArenaBytes;
}

std::optional<DeviceMemory::Allocation> DeviceMemory::find(Address address, std::size_t bytes) const {
  const std::scoped_lock lock(mutex_);
  auto found = allocations_.upper_bound(address);
  if (found == allocations_.begin()) return std::nullopt;
  const Allocation& allocation = (--found)->second;
  const std::size_t offset = address - allocation.address;
  if (offset > allocation.bytes || bytes > allocation.bytes - offset) return std::nullopt;
  if (offset == allocation.bytes && allocation.bytes != 0) return std::nullopt;
  return allocation;
}

char* DeviceMemory::bytes(Address address) const {
  return bytes_ + (address - begin_);
}

DeviceMemory::Ticket DeviceMemory::begin(const Rows& rows, bool& poison_now) {
  const std::scoped_lock lock(mutex_);
  poison_now = std::none_of(pending_.begin(), pending_.end(), [&](const auto& other) {
    return overlap(rows.address, rows.span(), other.second.address, other.second.bytes);
  });
  pending_.emplace(++tickets_, Pending{rows.address, rows.span()});
  return tickets_;
}

void DeviceMemory::end(Ticket ticket) {
  const std::scoped_lock lock(mutex_);
  pending_.erase(ticket);
}

bool DeviceMemory::in_flight(Address address, std::size_t bytes) const {
  const std::scoped_lock lock(mutex_);
  return std::any_of(pending_.begin(), pending_.end(), [&](const auto& pending) {
    return overlap(address, bytes, pending.second.address, pending.second.bytes);
  });
}

void DeviceMemory::poison(const Rows& rows) const {
  const Unseen unseen;  // in the name of the device, when the program has rightly not waited for earlier work
  for (std::size_t row = 0; row < rows.height; ++row) {
    Address at = rows.address + row * rows.pitch;
    const Address end = at + rows.width;
    while (at < end) {
      const std::size_t phase = at % kPatternBytes;
      const std::size_t count = std::min<std::size_t>(end - at, kPatternBytes - phase);
      std::memcpy(bytes(at), pattern_.data() + phase, count);
      at += count;
    }
  }
}

// Volatile, one by one and unseen by ThreadSanitizer: that a copy may be under way is the point of asking.
__attribute__((no_sanitize("thread"))) bool DeviceMemory::is_poison(Address address, std::size_t count) const {
  const volatile char* data = bytes(address);
  for (std::size_t i = 0; i < count; ++i) {
    if (data[i] != pattern_[(address + i) % kPatternBytes]) return false;
  }
  return true;
}

void DeviceMemory::reset(std::uint64_t seed) {
  const std::scoped_lock lock(mutex_);
  while (!allocations_.empty()) drop(allocations_.begin());
  pending_.clear();
  for (std::size_t i = 0; i < kPatternBytes; ++i) {
    pattern_[i] = static_cast<char>(0xA0U | (mix(seed, i) & 0x0FU));  // 0xA0 to 0xAF: easy to tell in a dump
  }
}

}  // namespace infercluster::gpu_double
