// SPDX-License-Identifier: Apache-2.0
// One TCP connection to a target, and what is spoken on it before reads begin: initialization, Connect, admin commands,
// one after another, each with a deadline. NVMe over TCP Transport Specification 1.0, section 3.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"
#include "nvme/fabrics.h"
#include "nvme/pdu_reader.h"
#include "os/socket.h"

namespace infercluster::initiator {

// How data of ours goes to the target. It has to take 8,192 bytes in capsules of the admin queue and of Fabrics
// commands (NVMe over TCP Transport Specification 1.0, section 3), but Linux does not where its param_inline_data_size
// is less.
enum class Sending : std::uint8_t {
  in_capsule,
  when_asked,  // the command goes alone, and the target asks for its data (R2T)
};

struct ChannelOptions {
  nvme::Digests digests;
  Sending sending = Sending::in_capsule;
  std::chrono::milliseconds timeout{5000};  // of connecting, and of each command here
  // And nothing here takes longer than until then, whatever the target does: see Channel::unbound().
  Clock::TimePoint until = Clock::TimePoint::max();
  const std::atomic<bool>* cancelled = nullptr;  // once it is true, all waiting ends within 50 ms
};

// Thread rule: one thread at a time.
class Channel {
 public:
  // The kind of an error that a digest of a header brought.
  static constexpr const char* kDigestKind = "Digest";

  // Connects and initializes. Errors: those of the connection; unsupported (a target that wants what we do not do).
  static Result<std::unique_ptr<Channel>> open(const os::SocketAddress& address, const ChannelOptions& options);

  struct Opened {
    std::unique_ptr<Channel> channel;
    nvme::Connected connected;
  };
  // The same, and Connect of a queue on it; where the target refuses its data in the capsule, once more on a connection
  // that sends when asked. The error names what the target refused: what is of no use to try again is not_found or
  // permission.
  static Result<Opened> open_queue(const os::SocketAddress& address, const ChannelOptions& options,
                                   const nvme::Connect& connect, const nvme::ConnectData& data);

  struct Reply {
    nvme::CommandStatus status;
    std::uint64_t result = 0;
    std::vector<std::byte> data;
  };
  // Whether a command that succeeds must bring all the data that there is room for.
  enum class Data : std::uint8_t { all, up_to };
  // Sends a command and waits for its completion. `to_send` goes with it; or `data_bytes` are expected back. Errors:
  // timed_out; io (the connection is gone); corrupt (the target breaks the protocol, or a digest). After an error the
  // channel is of no use.
  Result<Reply> command(nvme::Command command, std::span<const std::byte> to_send, std::uint32_t data_bytes,
                        Data data = Data::all);
  // The same, where a status other than success is an error that names `what` was asked.
  Result<Reply> must(const nvme::Command& command, std::uint32_t data_bytes, std::string_view what);

  // From here on there is no end to what may come, but for the timeout of each command.
  void unbound(std::chrono::milliseconds timeout);

  // What the target turned out to need: see open_queue().
  [[nodiscard]] Sending sending() const { return options_.sending; }

  // From here on by somebody else: see Queue.
  [[nodiscard]] const Fd& socket() const { return socket_; }
  [[nodiscard]] nvme::PduReader& reader() { return reader_; }
  [[nodiscard]] nvme::Digests digests() const { return digests_; }
  [[nodiscard]] const std::string& peer() const { return peer_; }

  // Reads what is there, or waits for it until the deadline, and takes it apart. Bytes that belong to data with a place
  // go there directly. Errors as of command().
  Result<nvme::PduReader::Progress> receive(Clock::TimePoint deadline);
  Status send(std::span<const std::byte> bytes, Clock::TimePoint deadline);
  // What the socket takes at once, perhaps nothing.
  Result<std::size_t> send_some(std::span<const std::byte> bytes);
  // The error for a PDU that breaks the protocol, which is the last that was received. `information` is the offset of
  // the field at fault, with invalid_header_field.
  Error refuse(nvme::FatalStatus status, std::uint32_t information, std::string_view what);
  // Where an error was the target's fault, tells it so (H2CTermReq) as far as the socket takes that at once.
  void tell_why();

 private:
  struct Exchange;
  Channel(Fd socket, std::string peer, const ChannelOptions& options);
  Status initialize();
  Result<nvme::Connected> connect(const nvme::Connect& connect, const nvme::ConnectData& data);
  Error refused(const Reply& reply, const nvme::Connect& connect, const nvme::ConnectData& data) const;
  Status run(Exchange& exchange, Clock::TimePoint deadline);
  Status place_data(Exchange& exchange);
  Result<bool> on_whole(Exchange& exchange, Clock::TimePoint deadline);
  Status on_ready(Exchange& exchange, const nvme::ReadyToTransfer& ready, Clock::TimePoint deadline);
  Status send_pdu(const nvme::Pdu& pdu, std::span<const std::byte> data, Clock::TimePoint deadline);
  Result<nvme::PduReader::Progress> take(std::span<std::byte> room);
  Error broken(std::string_view what) const;
  Error at_fault();
  [[nodiscard]] Clock::TimePoint deadline() const;
  // Waits for the socket. Errors: timed_out, cancelled.
  Status wait(short events, Clock::TimePoint deadline, std::string_view what) const;

  Fd socket_;
  std::string peer_;
  ChannelOptions options_;
  nvme::Digests digests_;
  std::uint32_t data_alignment_ = 4;  // of data that goes to the target
  std::uint32_t host_data_max_ = 0;   // in one H2CData
  nvme::PduReader reader_;
  std::optional<nvme::Terminate> owed_;  // what the target is to be told
  std::uint16_t next_cid_ = 0;
  // What was read beyond the header at hand.
  std::array<std::byte, 16384> staged_{};
  std::size_t staged_begin_ = 0;
  std::size_t staged_end_ = 0;
};

}  // namespace infercluster::initiator
