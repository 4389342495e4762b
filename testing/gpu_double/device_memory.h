// SPDX-License-Identifier: Apache-2.0
// The memory of one device. Its addresses belong to a mapping that nobody can touch: a host access faults. The bytes
// lie in a second mapping, a fixed distance away, which only the double's own copies use.
//
// Bytes that nobody may rely on yet hold poison: after an allocation, and in the target of a queued write until that
// has run. Freed addresses are not given out again before all others were, so a late use is found.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace infercluster::gpu_double {

using Address = std::uint64_t;

// `height` rows of `width` bytes, `pitch` bytes apart.
struct Rows {
  Address address = 0;
  std::size_t width = 0;
  std::size_t pitch = 0;
  std::size_t height = 1;

  // From the first byte to behind the last, gaps between rows included.
  [[nodiscard]] std::size_t span() const { return height == 0 || width == 0 ? 0 : (height - 1) * pitch + width; }
};

// Thread-safe.
class DeviceMemory {
 public:
  struct Allocation {
    Address address = 0;
    std::size_t bytes = 0;
    std::uint64_t context = 0;  // the handle of the context that it belongs to
  };
  using Ticket = std::uint64_t;

  // Aligned to 256 bytes and no more below 1 MiB, to 2 MiB from there on, as real drivers do it. Nothing when it does
  // not fit below `limit_bytes` with what is allocated now.
  std::optional<Address> allocate(std::size_t bytes, std::uint64_t context, std::uint64_t limit_bytes);
  bool release(Address address);
  // Of a context that goes; returns how many there were.
  std::size_t release_all_of(std::uint64_t context);
  [[nodiscard]] std::uint64_t allocated_bytes() const;

  // Whether the address belongs to this device, allocated or not.
  [[nodiscard]] bool owns(Address address) const;
  // The allocation that holds all of the range.
  [[nodiscard]] std::optional<Allocation> find(Address address, std::size_t bytes) const;
  // Where the bytes really are.
  [[nodiscard]] char* bytes(Address address) const;

  // A queued operation will read or write these rows. `poison_now` on return: no earlier one touches them, so that a
  // write's target may be poisoned at once; else only when it runs, since an earlier one may still need the bytes.
  Ticket begin(const Rows& rows, bool& poison_now);
  void end(Ticket ticket);
  [[nodiscard]] bool in_flight(Address address, std::size_t bytes) const;

  void poison(const Rows& rows) const;
  // Whether each byte of the range holds the poison of its place. Reads what others may be writing.
  [[nodiscard]] bool is_poison(Address address, std::size_t bytes) const;
  // The next poison pattern follows from the seed. All allocations go.
  void reset(std::uint64_t seed);

 private:
  static constexpr std::size_t kPatternBytes = 4096;

  struct Pending {
    Address address = 0;
    std::size_t bytes = 0;
  };

  bool reserve();                                                      // with mutex_ held
  std::optional<Address> place(std::size_t bytes);                     // with mutex_ held
  std::optional<Address> place_from(Address from, std::size_t bytes);  // with mutex_ held
  void drop(std::map<Address, Allocation>::iterator allocation);       // with mutex_ held

  mutable std::mutex mutex_;
  Address begin_ = 0;                          // written once, before the first allocation
  char* bytes_ = nullptr;                      // as begin_
  Address next_ = 0;                           // guarded by mutex_: where the search for a place begins
  std::uint64_t allocated_bytes_ = 0;          // guarded by mutex_
  std::map<Address, Allocation> allocations_;  // guarded by mutex_
  std::map<Ticket, Pending> pending_;          // guarded by mutex_
  Ticket tickets_ = 0;                         // guarded by mutex_
  std::array<char, kPatternBytes> pattern_{};  // changed by reset() only
};

}  // namespace infercluster::gpu_double
