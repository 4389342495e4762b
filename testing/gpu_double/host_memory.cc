// SPDX-License-Identifier: Apache-2.0
#include "testing/gpu_double/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "testing/gpu_double/counters.h"

namespace infercluster::gpu_double {
namespace {

bool overlap(std::uintptr_t a, std::size_t a_bytes, std::uintptr_t b, std::size_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

bool is_mapped(std::uintptr_t address, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = address / page * page;
  const std::size_t pages = (address + bytes - first + page - 1) / page;
  std::vector<unsigned char> residency(pages);
  return ::mincore(std::bit_cast<void*>(first), pages * page, residency.data()) == 0;
}

}  // namespace

HostMemory::Registering HostMemory::add(const Registration& registration) {
  if (!is_mapped(registration.address, registration.bytes)) return Registering::kNotMapped;
  const std::scoped_lock lock(mutex_);
  for (const auto& [address, other] : registrations_) {
    if (overlap(address, other.bytes, registration.address, registration.bytes)) return Registering::kOverlaps;
  }
  registrations_.emplace(registration.address, registration);
  ++counters().registrations;
  ++counters().registrations_made;
  counters().registered_bytes += registration.bytes;
  return Registering::kDone;
}

void HostMemory::drop(std::map<std::uintptr_t, Registration>::iterator registration) {
  --counters().registrations;
  counters().registered_bytes -= registration->second.bytes;
  registrations_.erase(registration);
}

bool HostMemory::remove(std::uintptr_t address) {
  const std::scoped_lock lock(mutex_);
  const auto found = registrations_.find(address);
  if (found == registrations_.end()) return false;
  drop(found);
  return true;
}

std::size_t HostMemory::remove_all_of(std::uint64_t context) {
  const std::scoped_lock lock(mutex_);
  std::size_t count = 0;
  for (auto next = registrations_.begin(); next != registrations_.end();) {
    const auto registration = next++;
    if (registration->second.context != context) continue;
    drop(registration);
    ++count;
  }
  return count;
}

std::optional<HostMemory::Registration> HostMemory::at(std::uintptr_t address) const {
  const std::scoped_lock lock(mutex_);
  const auto found = registrations_.find(address);
  return found == registrations_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<HostMemory::Registration> HostMemory::find(std::uintptr_t address, std::size_t bytes) const {
  const std::scoped_lock lock(mutex_);
  auto found = registrations_.upper_bound(address);
  if (found == registrations_.begin()) return std::nullopt;
  const Registration& registration = (--found)->second;
  const std::size_t offset = address - registration.address;
  if (offset >= registration.bytes || bytes > registration.bytes - offset) return std::nullopt;
  return registration;
}

bool HostMemory::pinned_for(std::uint64_t context, std::uintptr_t address, std::size_t bytes) const {
  const auto registration = find(address, bytes);
  return registration && (registration->portable || registration->context == context);
}

HostMemory::Ticket HostMemory::begin(std::uintptr_t address, std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  pending_.emplace(++tickets_, Range{address, bytes});
  return tickets_;
}

void HostMemory::end(Ticket ticket) {
  const std::scoped_lock lock(mutex_);
  pending_.erase(ticket);
}

bool HostMemory::in_flight(std::uintptr_t address, std::size_t bytes) const {
  const std::scoped_lock lock(mutex_);
  return std::any_of(pending_.begin(), pending_.end(), [&](const auto& pending) {
    return overlap(address, bytes, pending.second.address, pending.second.bytes);
  });
}

void HostMemory::reset() {
  const std::scoped_lock lock(mutex_);
  registrations_.clear();
  pending_.clear();
}

}  // namespace infercluster::gpu_double
