// SPDX-License-Identifier: Apache-2.0
// One read system call, asynchronously: what io_uring and a pool of threads have in common. No retries, no policy:
// io/engine.h.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace infercluster::io {

// One request is never longer, so that the kernel's 2 GiB limit per read cannot bite.
inline constexpr std::uint32_t kRequestBytesMax = 16u << 20;

enum class ReadHint : std::uint8_t {
  device,    // direct: the device writes to the memory, and no processor is needed
  buffered,  // waits for a device and is copied from the page cache: by a worker, or the submitting thread would do all
             // copies
  resident,  // expected to be such a copy alone: spread over workers, but not over many more than there are processors
};

struct ReadOperation {
  int fd = -1;
  std::uint64_t offset = 0;
  std::byte* memory = nullptr;
  std::uint32_t length = 0;  // 1 to kRequestBytesMax
  ReadHint hint = ReadHint::device;
  std::uint64_t token = 0;  // comes back with the result
};

struct OperationResult {
  std::uint64_t token = 0;
  std::int64_t result = 0;  // bytes read (may be short; 0: end of file), or -errno
};

// Thread rule: one thread calls everything but wake(), which any thread may call.
// Destruction waits until every submitted operation is finished: only then may their memory go.
class Backend {
 public:
  virtual ~Backend() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;  // "io_uring" or "threads"
  [[nodiscard]] virtual unsigned capacity() const = 0;      // operations that may be in flight at once
  [[nodiscard]] virtual unsigned in_flight() const = 0;

  // Hands the operation to the kernel or a thread, at the latest at the next wait(). False: at capacity, nothing was
  // taken.
  [[nodiscard]] virtual bool submit(const ReadOperation& operation) = 0;

  // Waits until a result is there, wake() was called or `timeout` passed (zero: does not wait); returns how many
  // results it put into `results`. A wake() that came before wait() makes it return at once. Allocates nothing.
  virtual std::size_t wait(std::span<OperationResult> results, std::chrono::nanoseconds timeout) = 0;

  virtual void wake() = 0;
};

enum class BackendChoice : std::uint8_t { automatic, uring, threads };

struct BackendOptions {
  BackendChoice choice = BackendChoice::automatic;
  unsigned depth = 32;   // capacity: operations in flight
  unsigned threads = 0;  // of the threads backend; 0: chosen by the processors at hand
};

struct ChosenBackend {
  std::unique_ptr<Backend> backend;
  std::string reason;  // why not io_uring when `automatic` fell back to threads; empty otherwise
};

// `automatic` takes io_uring, and threads where io_uring is refused (EPERM, ENOSYS, io_uring_disabled, ENOMEM by
// MEMLOCK): logged once per process as one warning that names the cause and its remedy. `uring` fails instead.
// INFERCLUSTER_BACKEND is read by api, not here.
Result<ChosenBackend> open_backend(const BackendOptions& options);

// Why io_uring cannot be used here, or ok. For `doctor`.
Status probe_uring();

}  // namespace infercluster::io
