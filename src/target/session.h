// SPDX-License-Identifier: Apache-2.0
// One connection of a host, which is one queue: what it sends, and what it is answered. Knows neither sockets nor
// files: bytes come in through reader(), reads are taken with next_read() and come back with read_done(), and what is
// to be sent lies in outgoing(). NVMe over TCP Transport Specification 1.0, section 3.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "nvme/pdu_reader.h"
#include "target/address_space.h"
#include "target/controllers.h"
#include "target/queue_authentication.h"

namespace infercluster::target {

// A read that the session has accepted, for the shard to carry out. At most one object: guards are wider than reads.
struct PendingRead {
  std::uint16_t cid = 0;
  std::uint32_t bytes = 0;
  Pieces pieces;
};

// One PDU to send: its prelude, then `data`, then the digest. What the data lies in is held until the kernel has let
// go.
struct Outgoing {
  std::array<std::byte, nvme::kHeaderBytesMax + nvme::kDigestBytes> prelude{};
  std::size_t prelude_bytes = 0;
  std::span<const std::byte> data;
  std::vector<std::byte> owned;      // data of the session's own making
  std::shared_ptr<const void> held;  // data of others
  std::array<std::byte, nvme::kDigestBytes> digest{};
  std::size_t digest_bytes = 0;
};

struct SessionCounters {
  std::uint64_t commands = 0;
  std::uint64_t reads = 0;
  std::uint64_t bytes = 0;             // of data sent
  std::uint64_t digests_combined = 0;  // data digests that came from stored checksums, without a look at the data
  std::uint64_t errors = 0;            // commands that failed
  std::uint64_t refused = 0;           // hosts that failed to authenticate
};

// Thread rule: one thread at a time.
class Session {
 public:
  struct Environment {
    Controllers* controllers = nullptr;
    const AddressSpace* space = nullptr;
    const Clock* clock = nullptr;
    bool loopback = false;   // the peer is this machine
    nvme::DiscoveryLog log;  // what a discovery controller says at this address
  };
  explicit Session(Environment environment);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Takes bytes as they came. False: the connection is to end once what is in outgoing() is sent, if it can be.
  [[nodiscard]] bool receive(std::span<const std::byte> bytes);

  // The next read to carry out; nullopt: none.
  std::optional<PendingRead> next_read();
  [[nodiscard]] const PendingRead* waiting_read() const { return reads_.empty() ? nullptr : &reads_.front(); }
  [[nodiscard]] std::size_t reads_waiting() const { return reads_.size(); }
  // How a read ended: its bytes, with the CRC32C of all of them, or why there are none. `held` keeps the bytes.
  struct ReadResult {
    nvme::CommandStatus status;
    std::span<const std::byte> data;
    std::uint32_t crc = 0;  // of data; meaningful when the session uses data digests
    std::shared_ptr<const void> held;
  };
  void read_done(const PendingRead& read, ReadResult result);

  [[nodiscard]] std::deque<Outgoing>& outgoing() { return outgoing_; }
  // Null until Connect; lives longer than what is in outgoing().
  [[nodiscard]] ControllerSlot* controller() const { return slot_.get(); }
  // Data digests were agreed on: read_done() needs the CRC, and the host will check it.
  [[nodiscard]] bool data_digests() const { return digests_.data; }
  // Its controller asks for the end of this connection.
  [[nodiscard]] bool ended_by_controller() const;
  // Its host has to prove itself, and did not in time.
  [[nodiscard]] bool authentication_overdue() const;
  // Its host has to prove itself, and has not. Counts it as refused, and says so.
  std::optional<std::string> refuse_unauthenticated();
  [[nodiscard]] const SessionCounters& counters() const { return counters_; }
  [[nodiscard]] const std::string& fault() const { return fault_; }  // why it ended, when the peer was at fault
  [[nodiscard]] unsigned outstanding() const { return outstanding_; }

 private:
  bool on_pdu();
  bool on_initialize(const nvme::InitializeRequest& request);
  bool on_command(const nvme::Command& command);
  bool on_first_command(const nvme::Command& command);
  bool on_authentication(const nvme::Command& command);
  void on_admin(const nvme::Command& command);
  void on_io(const nvme::Command& command);
  bool terminate(const nvme::Fault& fault, std::span<const std::byte> header);
  bool terminate(nvme::FatalStatus status, std::uint32_t information, std::string message);
  void send(const nvme::Pdu& pdu, Outgoing outgoing = {}, std::uint32_t data_crc = 0);
  void complete(std::uint16_t cid, const nvme::Reply& reply);
  void send_completion(std::uint16_t cid, nvme::CommandStatus status, std::uint64_t result);
  void answer(const nvme::Command& command, nvme::Reply reply);

  Environment environment_;
  nvme::PduReader reader_;
  nvme::Digests digests_;
  std::uint32_t data_alignment_ = 4;     // of data that goes to the host
  std::vector<std::byte> capsule_data_;  // in-capsule data of the PDU that is being read
  bool capsule_intact_ = true;
  std::shared_ptr<ControllerSlot> slot_;               // null until Connect
  std::optional<QueueAuthentication> authentication_;  // where the host has to prove itself
  std::uint16_t queue_id_ = 0;
  std::uint16_t queue_size_ = 0;  // entries - 1
  bool flow_control_ = true;
  std::uint16_t sq_head_ = 0;
  unsigned outstanding_ = 0;
  unsigned events_held_ = 0;
  std::deque<PendingRead> reads_;
  std::deque<Outgoing> outgoing_;
  SessionCounters counters_;
  std::string fault_;
};

}  // namespace infercluster::target
