// SPDX-License-Identifier: Apache-2.0
// What the double counts. Tests read the counters by name (control.h); the names are those of the list below.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>

namespace infercluster::gpu_double {

// X(name): what is live now; all zero when nothing leaks.
#define IC_GPU_DOUBLE_LIVE(X)                                                 \
  X(allocations)         /* device allocations */                             \
  X(allocated_bytes)     /* as asked for */                                   \
  X(streams)             /* without the contexts' default streams */          \
  X(events)              /**/                                                 \
  X(registrations)       /* of host memory */                                 \
  X(registered_bytes)    /**/                                                 \
  X(contexts_retained)   /* retains of primary contexts not yet given back */ \
  X(threads)             /* of the double: one per stream that was used */    \
  X(cufile_handles)      /**/                                                 \
  X(cufile_buffers)      /* registered ranges of device memory */             \
  X(cufile_driver_opens) /**/

// X(name): what happened since the last reset.
#define IC_GPU_DOUBLE_TOTALS(X)                                                                     \
  X(calls)                   /* that a plan's "any" counts */                                       \
  X(async_operations)        /* queued copies and fills: what a plan's "async" counts */            \
  X(faults_injected)         /**/                                                                   \
  X(contexts_created)        /**/                                                                   \
  X(allocations_made)        /**/                                                                   \
  X(allocated_bytes_peak)    /**/                                                                   \
  X(registrations_made)      /**/                                                                   \
  X(host_to_device_copies)   /* completed, as are all that follow; a 2D copy counts as one */       \
  X(host_to_device_bytes)    /**/                                                                   \
  X(device_to_host_copies)   /**/                                                                   \
  X(device_to_host_bytes)    /**/                                                                   \
  X(device_to_device_copies) /**/                                                                   \
  X(device_to_device_bytes)  /**/                                                                   \
  X(memsets)                 /**/                                                                   \
  X(pageable_copies)         /* asynchronous copies from or to unregistered host memory */          \
  X(frees_in_flight)         /* cuMemFree with work on that memory still queued: it waited */       \
  X(streams_destroyed_in_flight)                                                                    \
  X(contexts_destroyed_in_use) /* things destroyed only because their context went */               \
  X(cufile_reads)              /**/                                                                 \
  X(cufile_bytes)              /**/                                                                 \
  X(cufile_unaligned)          /* reads whose file offset, device offset or size is not of 4 KiB */ \
  X(cufile_unregistered)       /* reads into memory that cuFileBufRegister does not cover */        \
  X(cufile_compat_reads)       /* that went through host memory */                                  \
  X(violations)                /* misuse that real hardware answers with wrong bytes, or not at all */

// Relaxed: counting orders nothing, so that ThreadSanitizer sees the races of the program that is tested.
class Counter {
 public:
  Counter& operator=(std::uint64_t value) {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }
  Counter& operator+=(std::uint64_t value) {
    value_.fetch_add(value, std::memory_order_relaxed);
    return *this;
  }
  Counter& operator-=(std::uint64_t value) {
    value_.fetch_sub(value, std::memory_order_relaxed);
    return *this;
  }
  Counter& operator++() { return *this += 1; }
  Counter& operator--() { return *this -= 1; }
  operator std::uint64_t() const {
    return value_.load(std::memory_order_relaxed);
  }  // NOLINT(google-explicit-constructor)

 private:
  std::atomic<std::uint64_t> value_{0};
};

struct Counters {
#define IC_COUNTER(name) Counter name;
  IC_GPU_DOUBLE_LIVE(IC_COUNTER)
  IC_GPU_DOUBLE_TOTALS(IC_COUNTER)
#undef IC_COUNTER

  // The value of a counter of this name; "live" is the sum of all that are live but the bytes.
  [[nodiscard]] std::optional<std::uint64_t> value(std::string_view name) const;
  void clear();
};

// Thread-safe. There is one set for the process.
Counters& counters();
// Counts a violation and prints what it was: a test that fails by the counter has its reason in the output.
void count_violation(std::string_view what);

}  // namespace infercluster::gpu_double
