// SPDX-License-Identifier: Apache-2.0
// How a test drives the double: plans, counters, a look into device memory. See README.md beside this file.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>

namespace infercluster::gpu_double {

// X(function, what it returns, parameters): what libcuda.so.1 of the double exports besides the driver API, in plain C
// so that ctypes can call it.
// - set_plan: replaces the plan (fault_plan.h has its language) and restarts its counts; null, or why the text is no
//   plan (valid until the thread's next call). What lives stays, so `devices` and memory_mib concern new calls only.
// - counter: by the names of counters.h; also "calls:NAME" (cuMemAlloc, any, async), "contexts_created:DEVICE",
//   "contexts_retained:DEVICE" and "allocated_bytes:DEVICE". An unknown name aborts: a test that asks for it cannot
//   fail.
// - reset: waits for all that runs, destroys everything, zeroes the counters, and takes the plan of
//   INFERCLUSTER_GPU_DOUBLE again. For between tests, when no code under test is active.
// - hold and release: between them no stream begins an operation; those that have begun end. Waiting for a held stream
//   waits for release.
// - read: copies device memory out, past all streams, whatever is under way; 0 when the range is in no allocation.
// - is_poison: 1 when no byte of the range has arrived since it was allocated, or announced as a copy's target.
// - finish: waits until nothing is queued on any device.
#define IC_GPU_DOUBLE_CONTROLS(X)                                                  \
  X(ic_gpu_double_set_plan, const char*, (const char* text))                       \
  X(ic_gpu_double_counter, std::uint64_t, (const char* name))                      \
  X(ic_gpu_double_reset, void, ())                                                 \
  X(ic_gpu_double_hold, void, ())                                                  \
  X(ic_gpu_double_release, void, ())                                               \
  X(ic_gpu_double_finish, void, ())                                                \
  X(ic_gpu_double_read, int, (std::uint64_t address, void* to, std::size_t bytes)) \
  X(ic_gpu_double_is_poison, int, (std::uint64_t address, std::size_t bytes))

// The control of the libcuda that INFERCLUSTER_LIBCUDA names; aborts when that is no double. Loads it when the code
// under test has not yet. Thread-safe.
class Control {
 public:
  // Does it name a double? Else the code under test runs on a real driver (tests/device).
  static bool is_there() {
    const char* path = std::getenv("INFERCLUSTER_LIBCUDA");
    void* library = path == nullptr ? nullptr : ::dlopen(path, RTLD_NOW | RTLD_LOCAL);  // stays loaded in any case
    return library != nullptr && ::dlsym(library, "ic_gpu_double_counter") != nullptr;
  }

  Control() {
    const char* path = std::getenv("INFERCLUSTER_LIBCUDA");
    void* library = path == nullptr ? nullptr : ::dlopen(path, RTLD_NOW | RTLD_LOCAL);  // stays loaded in any case
    if (library == nullptr) die("INFERCLUSTER_LIBCUDA names no library that loads");
// The parameters come with parentheses of their own.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define IC_GPU_DOUBLE_FIND(name, returned, parameters)                         \
  name##_ = reinterpret_cast<returned(*) parameters>(::dlsym(library, #name)); \
  if (name##_ == nullptr) die("the libcuda of INFERCLUSTER_LIBCUDA is no double: it lacks " #name);
    IC_GPU_DOUBLE_CONTROLS(IC_GPU_DOUBLE_FIND)
#undef IC_GPU_DOUBLE_FIND
    // NOLINTEND(bugprone-macro-parentheses)
  }

  void set_plan(const std::string& text) const {
    if (const char* error = ic_gpu_double_set_plan_(text.c_str())) die(error);
  }
  [[nodiscard]] std::uint64_t counter(const std::string& name) const {
    return ic_gpu_double_counter_(name.c_str());
  }
  void reset() const {
    ic_gpu_double_reset_();
  }
  void hold() const {
    ic_gpu_double_hold_();
  }
  void release() const {
    ic_gpu_double_release_();
  }
  void finish() const {
    ic_gpu_double_finish_();
  }
  // False when the range is in no allocation.
  [[nodiscard]] bool read(std::uint64_t address, std::span<std::byte> to) const {
    return ic_gpu_double_read_(address, to.data(), to.size()) != 0;
  }
  [[nodiscard]] bool is_poison(std::uint64_t address, std::size_t bytes) const {
    return ic_gpu_double_is_poison_(address, bytes) != 0;
  }

 private:
  [[noreturn]] static void die(const std::string& why) {
    std::fprintf(stderr, "gpu double: %s\n", why.c_str());
    std::abort();
  }

// NOLINTNEXTLINE(bugprone-macro-parentheses): the parameters come with parentheses of their own
#define IC_GPU_DOUBLE_MEMBER(name, returned, parameters) returned(*name##_) parameters = nullptr;
  IC_GPU_DOUBLE_CONTROLS(IC_GPU_DOUBLE_MEMBER)
#undef IC_GPU_DOUBLE_MEMBER
};

}  // namespace infercluster::gpu_double
