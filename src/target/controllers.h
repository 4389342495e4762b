// SPDX-License-Identifier: Apache-2.0
// Which hosts are connected: their controllers, and who may have one.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "nvme/auth_secret.h"
#include "nvme/controller.h"

namespace infercluster::target {

// One host's controller, which its admin queue and its I/O queues share. Any thread may use it.
class ControllerSlot {
 public:
  // `credentials`, unless null, must outlive it.
  ControllerSlot(const nvme::Subsystem& subsystem, const nvme::Controller::Options& options, nvme::ConnectData host,
                 const nvme::Credentials* credentials)
      : host_(std::move(host)), credentials_(credentials), controller_(subsystem, options) {}

  nvme::Reply admin(const nvme::Command& command, const nvme::DiscoveryLog& log);
  std::variant<nvme::ReadCommand, nvme::Reply> io(const nvme::Command& command);
  [[nodiscard]] std::uint16_t id() const { return controller_.id(); }
  [[nodiscard]] const nvme::ConnectData& host() const { return host_; }
  // How its host is to prove itself, on each of its queues; null: not at all.
  [[nodiscard]] const nvme::Credentials* credentials() const { return credentials_; }

  // The host was heard of.
  void heard(Clock::TimePoint now) { heard_ns_.store(now.time_since_epoch().count(), std::memory_order_relaxed); }
  // It said nothing for longer than its keep-alive timeout.
  [[nodiscard]] bool silent(Clock::TimePoint now) const;

  // All its queues are to end: the admin connection is gone, or the host fell silent.
  void close() { closed_.store(true, std::memory_order_release); }
  [[nodiscard]] bool closed() const { return closed_.load(std::memory_order_acquire); }
  // Of shards' buffers, by all its queues.
  std::atomic<std::size_t> buffers_held{0};
  // The host disabled it or shut it down: its I/O queues are to end, while the admin queue still answers.
  [[nodiscard]] bool stopped() const { return stopped_.load(std::memory_order_acquire); }

 private:
  friend class Controllers;

  const nvme::ConnectData host_;
  const nvme::Credentials* const credentials_;
  mutable std::mutex mutex_;
  nvme::Controller controller_;     // under mutex_, but for its id
  std::set<std::uint16_t> queues_;  // I/O queues that are open; under Controllers' mutex
  std::atomic<Clock::Duration::rep> heard_ns_{0};
  std::atomic<bool> closed_{false};
  std::atomic<bool> stopped_{false};
};

struct Limits {
  unsigned controllers_max = 64;      // of all hosts together
  unsigned controllers_per_host = 4;  // discovery included
  // From Connect to the proof that a host has to give. Linux takes some milliseconds.
  std::chrono::milliseconds authentication_timeout{10'000};
};

// Hosts with a secret are admitted, and have to prove that they know it. Of the others `hosts` are; and, where nobody
// has a secret, those from this machine. Discovery asks for no proof (as Linux does): it tells address and NQN alone.
struct Admission {
  std::vector<std::string> hosts{};                     // NQNs that are admitted
  bool any_from_loopback = true;                        // beside these, every host that comes from this machine
  std::map<std::string, nvme::Credentials> secrets{};   // by NQN
  std::optional<nvme::Credentials> secret_of_others{};  // of every host that has none of its own
};

// Thread rule: any thread may call anything.
class Controllers {
 public:
  Controllers(const nvme::Subsystem& subsystem, Admission admission, const Limits& limits)
      : subsystem_(subsystem), admission_(std::move(admission)), limits_(limits) {}

  struct Peer {
    bool loopback = false;
  };
  using Opened = std::variant<std::shared_ptr<ControllerSlot>, nvme::Reply>;
  // A queue that a host asks for: queue 0 makes a controller, others join one. The reply says what was refused.
  Opened open(const nvme::Connect& connect, const nvme::ConnectData& data, const Peer& peer, Clock::TimePoint now);
  // A queue's connection is gone. The controller goes with its admin queue.
  void queue_closed(const std::shared_ptr<ControllerSlot>& slot, std::uint16_t queue_id);
  // Closes controllers whose hosts fell silent.
  void close_silent(Clock::TimePoint now);

  [[nodiscard]] const nvme::Subsystem& subsystem() const { return subsystem_; }
  [[nodiscard]] const Limits& limits() const { return limits_; }
  [[nodiscard]] std::size_t count() const;

 private:
  [[nodiscard]] bool admitted(const nvme::ConnectData& data, const Peer& peer) const;
  [[nodiscard]] const nvme::Credentials* credentials_of(const std::string& host_nqn) const;
  Opened open_admin(const nvme::Connect& connect, const nvme::ConnectData& data);
  Opened open_io(const nvme::Connect& connect, const nvme::ConnectData& data);

  const nvme::Subsystem& subsystem_;
  const Admission admission_;
  const Limits limits_;
  mutable std::mutex mutex_;
  std::map<std::uint16_t, std::shared_ptr<ControllerSlot>> slots_;
  std::uint16_t last_id_ = 0;
};

}  // namespace infercluster::target
