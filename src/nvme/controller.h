// SPDX-License-Identifier: Apache-2.0
// A controller as its host sees it: what it answers on the admin queue, and what it takes on I/O queues. A state
// machine without transport, clock, memory of data or threads: commands in, replies out. NVM Express Base
// Specification 2.0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "nvme/command.h"
#include "nvme/fabrics.h"
#include "nvme/identify.h"

namespace infercluster::nvme {

inline constexpr std::uint32_t kNamespaceId = 1;  // the only one
inline constexpr unsigned kBlockBits = 12;        // blocks of 4 KiB
inline constexpr std::uint16_t kEventRequestsMax = 4;

// What all controllers of one subsystem have in common.
struct Subsystem {
  std::string nqn{};
  Uuid uuid{};                      // of its namespace: a new one whenever old addresses lost their meaning
  std::string serial{};             // at most 20 bytes
  std::string firmware{};           // at most 8 bytes
  std::uint64_t blocks = 0;         // of the namespace
  std::uint8_t transfer_bits = 8;   // MDTS: 2^8 pages are 1 MiB
  std::uint16_t io_queues_max = 8;  // per host
  std::uint16_t queue_entries_max = 128;
};

// The answer to one command. `data` is what goes to the host before the completion, exactly as long as it asked for.
struct Reply {
  CommandStatus status{};
  std::uint64_t result = 0;
  std::vector<std::byte> data{};
  bool held = false;  // an Asynchronous Event Request: not answered until there is an event
  bool operator==(const Reply&) const = default;
};

// What is wrong with opening a queue; nullopt: nothing. Who the host is, and whether it is admitted, is not asked here.
// `nqn` is that of the subsystem, or kDiscoveryNqn; for I/O queues `data.controller_id` is checked by who knows them.
std::optional<Reply> check_connect(const Connect& connect, const ConnectData& data, const Subsystem& subsystem);

// Thread rule: one thread at a time.
class Controller {
 public:
  struct Options {
    ControllerType type = ControllerType::io;
    std::uint16_t id = 1;
    std::uint32_t keep_alive_ms = 0;  // of the Connect; 0: none
  };
  // `subsystem` must outlive it.
  Controller(const Subsystem& subsystem, const Options& options) : subsystem_(subsystem), options_(options) {}

  // A command of the admin queue, other than Connect and those of authentication. `log` is what the discovery log page
  // says at present.
  Reply admin(const Command& command, const DiscoveryLog& log);

  // A command of an I/O queue: blocks that lie within the namespace and within MDTS, to be read; or the reply that it
  // gets at once.
  std::variant<ReadCommand, Reply> io(const Command& command);

  [[nodiscard]] std::uint16_t id() const { return options_.id; }
  [[nodiscard]] ControllerType type() const { return options_.type; }
  [[nodiscard]] std::uint32_t keep_alive_ms() const { return options_.keep_alive_ms; }
  [[nodiscard]] bool ready() const { return status_.ready; }
  // The host disabled it or shut it down: its I/O queues are to be closed once their commands are answered.
  [[nodiscard]] bool stopped() const { return stopped_; }

 private:
  Reply fabrics(const Command& command);
  Reply set_property(const PropertyAccess& access);
  [[nodiscard]] Reply get_property(const PropertyAccess& access) const;
  void configure(const Configuration& wanted);
  [[nodiscard]] Reply identify(const Command& command) const;
  [[nodiscard]] Reply log_page(const Command& command, const DiscoveryLog& log) const;
  Reply set_features(const Command& command);
  [[nodiscard]] Reply get_features(const Command& command) const;
  [[nodiscard]] IdentifyController identity() const;

  const Subsystem& subsystem_;
  Options options_;
  Configuration configuration_;
  ControllerStatus status_;
  bool stopped_ = false;
  std::uint32_t events_wanted_ = 0;
  std::uint16_t event_requests_ = 0;
};

}  // namespace infercluster::nvme
