// SPDX-License-Identifier: Apache-2.0
// Which host memory is registered (pinned), and which of it a queued copy will still touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace infercluster::gpu_double {

// Thread-safe.
class HostMemory {
 public:
  struct Registration {
    std::uintptr_t address = 0;
    std::size_t bytes = 0;
    std::uint64_t context = 0;
    bool portable = false;  // for copies of all contexts, not only of its own
  };
  enum class Registering { kDone, kNotMapped, kOverlaps };
  using Ticket = std::uint64_t;

  Registering add(const Registration& registration);
  bool remove(std::uintptr_t address);
  std::size_t remove_all_of(std::uint64_t context);
  // The registration that begins at the address.
  [[nodiscard]] std::optional<Registration> at(std::uintptr_t address) const;
  // The registration that holds all of the range.
  [[nodiscard]] std::optional<Registration> find(std::uintptr_t address, std::size_t bytes) const;
  [[nodiscard]] bool pinned_for(std::uint64_t context, std::uintptr_t address, std::size_t bytes) const;

  // A queued copy will touch this range.
  Ticket begin(std::uintptr_t address, std::size_t bytes);
  void end(Ticket ticket);
  [[nodiscard]] bool in_flight(std::uintptr_t address, std::size_t bytes) const;
  void reset();

 private:
  struct Range {
    std::uintptr_t address = 0;
    std::size_t bytes = 0;
  };
  void drop(std::map<std::uintptr_t, Registration>::iterator registration);  // with mutex_ held

  mutable std::mutex mutex_;
  std::map<std::uintptr_t, Registration> registrations_;  // guarded by mutex_
  std::map<Ticket, Range> pending_;                       // guarded by mutex_
  Ticket tickets_ = 0;                                    // guarded by mutex_
};

}  // namespace infercluster::gpu_double
