// SPDX-License-Identifier: Apache-2.0
// A host's association with a controller: its admin queue, kept alive, and the I/O queues, from their connecting until
// the first of them is lost. NVMe over Fabrics calls it so (NVM Express Base Specification 2.0, section 1.5.2).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "initiator/admin.h"
#include "initiator/options.h"
#include "initiator/queue.h"
#include "initiator/url.h"

namespace infercluster::initiator {

// What a host reads: it stays the same over all associations, or it is another one.
struct Namespace {
  nvme::Uuid uuid{};
  std::uint64_t blocks = 0;
  unsigned block_bits = 12;
  std::uint32_t read_bytes_max = 0;  // of one command
};

// Thread rule: one thread at a time; try_start() and has_room() by any, also while end() runs.
class Association {
 public:
  // Connects all queues within options.connect_timeout, or until `cancelled`. Errors: those of Channel; not_found (no
  // such namespace); unsupported (its blocks have metadata or protection, or another size than a power of two from 512
  // to 4,096).
  static Result<std::shared_ptr<Association>> connect(const Url& url, const nvme::ConnectData& self,
                                                      const HostOptions& options, Queue::Owner& owner,
                                                      const std::atomic<bool>& cancelled);
  Association(const Association&) = delete;
  Association& operator=(const Association&) = delete;

  [[nodiscard]] const Namespace& name_space() const { return namespace_; }
  [[nodiscard]] const nvme::IdentifyController& controller() const { return controller_; }

  // On the queue that is next in turn and has an entry. `full`: none has.
  Queue::Start try_start(const QueuedRead& read);
  [[nodiscard]] bool has_room() const;

  // One command on the admin queue and its answer, within the time that a connection may be silent.
  Status keep_alive();
  // Ends the I/O queues. When it returns no thread of theirs runs any more, and every read has been handed back to the
  // owner: what is left may be destroyed by any thread.
  void end();
  // After end(), where nothing is wrong: shuts the controller down, if the target answers soon.
  void say_goodbye();

 private:
  Association() = default;
  Status open_controller(const Url& url, const nvme::ConnectData& self, const HostOptions& options,
                         const ChannelOptions& bounds);
  Status open_namespace(const Url& url);
  Status open_queues(const Url& url, const nvme::ConnectData& self, const HostOptions& options,
                     const ChannelOptions& bounds, Queue::Owner& owner);

  std::unique_ptr<Channel> admin_;
  std::uint16_t controller_id_ = 0;
  std::uint16_t queue_entries_ = 0;
  nvme::IdentifyController controller_;
  Namespace namespace_;
  std::vector<std::unique_ptr<Queue>> queues_;
  std::atomic<unsigned> next_queue_{0};
};

}  // namespace infercluster::initiator
