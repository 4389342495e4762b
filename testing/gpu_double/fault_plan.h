// SPDX-License-Identifier: Apache-2.0
// What the double shall be, and what shall fail in it: one line of text, in INFERCLUSTER_GPU_DOUBLE or from a test.
//
// Entries are separated by commas, semicolons or spaces. Faults: CALL:WHEN=WHAT, where
//   CALL  the name of a function without its _v2; `any` counts all calls of both libraries that can fail (but not
//         cuGetErrorName and cuGetErrorString, which only explain); `async` counts queued copies and fills, and fails
//         them when they run: the error shows itself later, as in CUDA;
//   WHEN  N: the Nth call since the plan was set, from 1; N+: from the Nth on; *: each;
//   WHAT  a name or number of CUresult (CUDA_ERROR_OUT_OF_MEMORY, 719) or of CUfileOpError (5016); for cuFileRead also
//         EIO, EINVAL, EAGAIN, ENOMEM (-1 with that errno) and `short` (half of the bytes are read, `short:BYTES` that
//         many).
// A call that releases something does so even when it fails, and a call that waits has waited: so it is in CUDA, where
// such calls fail only for an error that has already ended the work.
// Settings: devices=2 (up to 8), memory_mib=8192 (per device), delay_us=0..2000 (of each queued operation and cuFile
// read, drawn from `seed`), seed=7 (also of the poison), driver_version=12090, attribute:N=V (cuDeviceGetAttribute),
// cufile_mode=nvidia_fs|p2p|compat|none, cufile_allow_compat=0|1, cufile_version=1140.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace infercluster::gpu_double {

inline constexpr int kDevicesMax = 8;

enum class CuFileMode { kNvidiaFs, kPeerToPeer, kCompat, kNone };

struct Settings {
  int devices = 2;
  std::uint64_t memory_bytes = std::uint64_t{8} << 30;
  std::uint64_t delay_min_us = 0;
  std::uint64_t delay_max_us = 0;
  std::uint64_t seed = 7;
  int driver_version = 12090;
  std::map<int, int> attributes;
  CuFileMode cufile_mode = CuFileMode::kNvidiaFs;
  bool cufile_allow_compat = true;
  int cufile_version = 1140;
};

struct Fault {
  enum class Kind { kCuda, kCuFile, kErrno, kShortRead };
  Kind kind = Kind::kCuda;
  int code = 0;  // CUresult, CUfileOpError, errno; short read: 0 or the bytes
  bool operator==(const Fault&) const = default;
};

// A parsed plan: immutable.
struct PlanText {
  struct Entry {
    std::string call;
    std::uint64_t first = 1;
    std::uint64_t last = std::numeric_limits<std::uint64_t>::max();
    Fault fault;
  };
  Settings settings;
  std::vector<Entry> faults;
};
// On failure `error` says which entry is wrong and why.
std::optional<PlanText> parse_plan(std::string_view text, std::string& error);

// Thread-safe: counts calls and answers which of them fail.
class FaultPlan {
 public:
  void set(PlanText plan);  // all counts begin again
  [[nodiscard]] Settings settings() const;
  // Counts a call of `name` (without _v2).
  std::optional<Fault> on_call(std::string_view name);
  // Counts a queued operation.
  std::optional<Fault> on_async();
  // How often `name` was called since the plan was set; "any" and "async" too.
  [[nodiscard]] std::uint64_t count(std::string_view name) const;
  // The delay of the next operation.
  std::uint64_t next_delay_us();

 private:
  std::optional<Fault> match(std::string_view name, std::uint64_t count) const;  // with mutex_ held

  mutable std::mutex mutex_;
  PlanText plan_;                                             // guarded by mutex_
  std::map<std::string, std::uint64_t, std::less<>> counts_;  // guarded by mutex_
  std::uint64_t delays_ = 0;                                  // guarded by mutex_
};

// The process's plan.
FaultPlan& fault_plan();

// A stream of numbers without state: the value of `seed` at `index`.
std::uint64_t mix(std::uint64_t seed, std::uint64_t index);

// The name of an error as CUDA spells it, or null.
const char* cuda_error_name(int code);

}  // namespace infercluster::gpu_double
