// SPDX-License-Identifier: Apache-2.0
// A host that is connected to a subsystem: its controller, kept alive, and one namespace, read over several queues.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "initiator/channel.h"
#include "initiator/queue.h"
#include "initiator/url.h"
#include "nvme/auth_secret.h"
#include "nvme/identify.h"

namespace infercluster::initiator {

struct HostOptions {
  std::string host_nqn;  // empty: one of this process's own making
  // To prove this host where the target asks for it; with a controller's secret, the target has to prove itself.
  std::optional<nvme::Credentials> credentials;
  nvme::Digests digests;
  unsigned queues = 1;
  std::uint16_t queue_entries = 32;
  std::chrono::milliseconds connect_timeout{5000};
  std::chrono::nanoseconds read_deadline = std::chrono::seconds(5);
  std::chrono::milliseconds keep_alive{5000};
};

// What a discovery controller at an address knows. Errors: those of Channel.
Result<nvme::DiscoveryLog> discover(const os::SocketAddress& address, const HostOptions& options);

// Thread rule: any thread may call anything.
class Host {
 public:
  // Connects the admin queue and all I/O queues. Errors: those of Channel; not_found (no such namespace); unsupported
  // (its blocks have metadata or protection, or another size than a power of two from 512 to 4,096).
  static Result<std::unique_ptr<Host>> connect(const Url& url, const HostOptions& options);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  [[nodiscard]] const Url& url() const { return url_; }
  [[nodiscard]] std::uint64_t blocks() const { return blocks_; }
  [[nodiscard]] std::uint32_t block_bytes() const { return 1U << block_bits_; }
  [[nodiscard]] const nvme::Uuid& uuid() const { return uuid_; }
  [[nodiscard]] std::uint32_t read_bytes_max() const { return read_bytes_max_; }  // of one command
  [[nodiscard]] const nvme::IdentifyController& controller() const { return controller_; }

  // One read of at most read_bytes_max(), on the queue that is next in turn. `done` is called exactly once, unless this
  // returns an error.
  Status start(BlockRead read);

  // Reads bytes [offset, offset + into.size()) of the namespace: any range, split at the limits, many at a time. Blocks
  // that are wanted in part are read into memory of its own. Errors: invalid_argument (beyond the end); those of reads.
  Status read(std::uint64_t offset, std::span<std::byte> into);

 private:
  Host() = default;
  Status open_controller();
  Status open_namespace();
  Status open_queues(std::uint16_t controller);
  void keep_alive();

  Url url_;
  HostOptions options_;
  nvme::ConnectData self_;
  std::unique_ptr<Channel> admin_;
  std::uint16_t controller_id_ = 0;
  nvme::IdentifyController controller_;
  nvme::Uuid uuid_{};
  std::uint64_t blocks_ = 0;
  unsigned block_bits_ = 12;
  std::uint32_t read_bytes_max_ = 0;
  std::uint16_t queue_entries_ = 0;
  std::vector<std::unique_ptr<Queue>> queues_;
  std::atomic<unsigned> next_queue_{0};
  std::mutex mutex_;
  std::condition_variable ending_;
  bool end_ = false;  // under mutex_
  std::thread keeper_;
};

}  // namespace infercluster::initiator
