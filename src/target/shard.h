// SPDX-License-Identifier: Apache-2.0
// One thread with one io_uring: it accepts connections, reads what hosts send, reads files, and sends.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"
#include "target/address_space.h"
#include "target/controllers.h"

namespace infercluster::target {

struct ShardOptions {
  unsigned connections_max = 256;
  std::size_t buffers = 64;                  // of 1 MiB: reads beyond these wait
  std::uint32_t zero_copy_from = 16 * 1024;  // bytes in one send; shorter ones are copied, which costs less
};

// Sums since the start. Read by any thread.
struct ShardCounters {
  std::atomic<std::uint64_t> connections{0};
  std::atomic<std::uint64_t> connections_refused{0};  // over connections_max
  std::atomic<std::uint64_t> faults{0};               // connections that ended by a peer's fault
  std::atomic<std::uint64_t> refused{0};              // queues whose host did not authenticate as it has to
  std::atomic<std::uint64_t> commands{0};
  std::atomic<std::uint64_t> reads{0};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint64_t> digests_combined{0};
  std::atomic<std::uint64_t> blocks_verified{0};  // held against their checksum before they were sent
  std::atomic<std::uint64_t> blocks_corrupt{0};   // and found to be others
  std::atomic<std::uint64_t> sends{0};
  std::atomic<std::uint64_t> sends_zero_copy{0};
  std::atomic<std::uint64_t> sends_copied{0};  // of the latter: the kernel copied after all, as loopback always does
};

// Thread rule: run() by one thread; stop() and counters() by any.
class Shard {
 public:
  struct Shared {
    Controllers* controllers = nullptr;
    const AddressSpace* space = nullptr;
    const Clock* clock = nullptr;
    const Fd* listener = nullptr;
  };
  // Errors: those of io_uring and of memory.
  static Result<std::unique_ptr<Shard>> open(const Shared& shared, const ShardOptions& options);
  ~Shard();

  // Serves until stop(); then ends its connections, and returns when nothing of the kernel's is under way any more.
  Status run();
  void stop();
  [[nodiscard]] const ShardCounters& counters() const;

 private:
  class Impl;
  explicit Shard(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace infercluster::target
