// SPDX-License-Identifier: Apache-2.0
#include "initiator/channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/units.h"
#include "nvme/bytes.h"

namespace infercluster::initiator {
namespace {

constexpr std::uint32_t kDataMax = 4 * kMiB;  // in one PDU of the target's: no command of ours asks for more
constexpr std::size_t kDirectFrom = 4096;     // data from this size on is not staged
constexpr std::uint8_t kAlignmentMax = 31;
constexpr auto kCancelMax = std::chrono::milliseconds(50);
constexpr const char* kCapsuleKind = "Capsule";  // of the error: data in a capsule is what was refused

using Progress = nvme::PduReader::Progress;

}  // namespace

Channel::Channel(Fd socket, std::string peer, const ChannelOptions& options)
    : socket_(std::move(socket)),
      peer_(std::move(peer)),
      options_(options),
      reader_(nvme::Side::host, {.data_max = kDataMax, .in_capsule_max = 0, .data_alignment = 4}) {}

Result<std::unique_ptr<Channel>> Channel::open(const os::SocketAddress& address, const ChannelOptions& options) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(options.until - steady_clock().now());
  IC_TRY(Fd socket, os::connect_tcp(address, std::min(options.timeout, left), options.cancelled));
  IC_CHECK(os::send_at_once(socket));
  std::unique_ptr<Channel> channel(new Channel(std::move(socket), address.to_string(), options));
  const Status initialized = channel->initialize();
  if (!initialized.ok()) {
    channel->tell_why();
    return initialized.error();
  }
  return channel;
}

Clock::TimePoint Channel::deadline() const {
  return std::min(options_.until, steady_clock().now() + options_.timeout);
}

void Channel::unbound(std::chrono::milliseconds timeout) {
  options_.timeout = timeout;
  options_.until = Clock::TimePoint::max();
  options_.cancelled = nullptr;
}

Error Channel::broken(std::string_view what) const {
  return Error(ErrorCode::corrupt, peer_ + ": the target breaks the NVMe/TCP protocol: " + std::string(what))
      .with_errno(EPROTO);
}

Status Channel::initialize() {
  const Clock::TimePoint deadline = this->deadline();
  IC_CHECK(send_pdu(
      {.type = nvme::PduType::initialize_request,
       .flags = 0,
       .body = nvme::InitializeRequest{.format = 0, .alignment = 0, .digests = options_.digests, .ready_max = 0}},
      {}, deadline));
  for (;;) {
    IC_TRY(const Progress progress, receive(deadline));
    if (progress == Progress::whole) break;
  }
  const auto* response = std::get_if<nvme::InitializeResponse>(&reader_.pdu().body);
  if (response == nullptr) return broken("instead of an ICResp comes " + std::string(name_of(reader_.pdu().type)));
  if (response->format != 0 || response->alignment > kAlignmentMax) {
    return Error(ErrorCode::unsupported, peer_ + ": the target wants PDU format " + std::to_string(response->format) +
                                             " and CPDA " + std::to_string(response->alignment));
  }
  const nvme::Digests wanted = options_.digests;
  if ((response->digests.header && !wanted.header) || (response->digests.data && !wanted.data)) {
    return broken("it enables digests that were not asked for");
  }
  if (response->digests != wanted) {
    return Error(ErrorCode::unsupported, peer_ + ": the target does not do the digests that were asked for")
        .with_hint("Ask for fewer digests");
  }
  digests_ = response->digests;
  data_alignment_ = 4U * (response->alignment + 1U);
  host_data_max_ = response->host_data_max;
  reader_.use(digests_);
  return {};
}

Status Channel::wait(short events, Clock::TimePoint deadline, std::string_view what) const {
  for (;;) {
    if (options_.cancelled != nullptr && options_.cancelled->load()) {
      return Error(ErrorCode::cancelled, peer_ + ": the connection is not wanted any more").with_errno(ECANCELED);
    }
    const Clock::Duration left = deadline - steady_clock().now();
    if (left <= Clock::Duration::zero()) {
      return Error(ErrorCode::timed_out, peer_ + ": the target " + std::string(what))
          .with_errno(ETIMEDOUT)
          .with_hint("Is it stopped, or the network between cut?");
    }
    pollfd waited{.fd = socket_.get(), .events = events, .revents = 0};
    const auto slice = options_.cancelled == nullptr ? left : std::min<Clock::Duration>(left, kCancelMax);
    const int ready = poll(&waited, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(slice).count()));
    if (ready > 0 || (ready < 0 && errno == EINTR)) return {};
    if (ready < 0) return Error::from_errno(errno, "cannot wait for " + peer_);
  }
}

Error Channel::at_fault() {
  const nvme::Fault& fault = reader_.fault();
  owed_ = fault.terminate;
  const bool digest = fault.terminate.status == nvme::FatalStatus::header_digest_error;
  return broken(fault.message).with_kind(digest ? kDigestKind : "");
}

Error Channel::refuse(nvme::FatalStatus status, std::uint32_t information, std::string_view what) {
  owed_ = {.status = status, .information = information};
  return broken(what);
}

void Channel::tell_why() {
  if (!owed_) return;
  const std::span<const std::byte> header =
      reader_.header_bytes().first(std::min(reader_.header_bytes().size(), nvme::kTerminateDataMax));
  const nvme::Pdu terminate{.type = nvme::PduType::host_terminate, .flags = 0, .body = *owed_};
  owed_.reset();
  // The connection ends in any case.
  (void)send_some(nvme::encode_pdu(terminate, {}, header));
}

Result<std::size_t> Channel::send_some(std::span<const std::byte> bytes) {
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t taken = ::send(socket_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (taken > 0) {
      sent += static_cast<std::size_t>(taken);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      return Error::from_errno(errno, "cannot send to " + peer_);
    }
  }
  return sent;
}

Status Channel::send(std::span<const std::byte> bytes, Clock::TimePoint deadline) {
  for (;;) {
    IC_TRY(const std::size_t sent, send_some(bytes));
    bytes = bytes.subspan(sent);
    if (bytes.empty()) return {};
    IC_CHECK(wait(POLLOUT, deadline, "takes nothing"));
  }
}

Result<Progress> Channel::take(std::span<std::byte> room) {
  const std::size_t count = std::min(room.size(), staged_end_ - staged_begin_);
  std::memcpy(room.data(), staged_.data() + staged_begin_, count);
  staged_begin_ += count;
  const Progress progress = reader_.filled(count);
  if (progress == Progress::fault) return at_fault();
  return progress;
}

Result<Progress> Channel::receive(Clock::TimePoint deadline) {
  const std::span<std::byte> room = reader_.room();
  if (staged_begin_ < staged_end_) return take(room);
  staged_begin_ = 0;
  staged_end_ = 0;
  const bool direct = room.size() >= kDirectFrom;
  for (;;) {
    const ssize_t got = direct ? recv(socket_.get(), room.data(), room.size(), 0)
                               : recv(socket_.get(), staged_.data(), staged_.size(), 0);
    if (got > 0 && direct) {
      const Progress progress = reader_.filled(static_cast<std::size_t>(got));
      if (progress == Progress::fault) return at_fault();
      return progress;
    }
    if (got > 0) {
      staged_end_ = static_cast<std::size_t>(got);
      return take(room);
    }
    if (got == 0) return Error(ErrorCode::io, peer_ + ": the target closed the connection").with_errno(ECONNRESET);
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return Error::from_errno(errno, "cannot receive from " + peer_);
    IC_CHECK(wait(POLLIN, deadline, "says nothing"));
  }
}

Result<Channel::Reply> Channel::must(const nvme::Command& command, std::uint32_t data_bytes, std::string_view what) {
  IC_TRY(Reply reply, this->command(command, {}, data_bytes));
  if (reply.status.ok()) return reply;
  const std::string text = peer_ + ": the target refuses " + std::string(what) + ": " + reply.status.to_string();
  if (reply.status == nvme::kInvalidNamespace) {
    return Error(ErrorCode::not_found, text)
        .with_hint("Is the nsid right? This program's targets have namespace 1 alone");
  }
  return Error(ErrorCode::io, text);
}

Result<Channel::Opened> Channel::open_queue(const os::SocketAddress& address, const ChannelOptions& options,
                                            const nvme::Connect& connect, const nvme::ConnectData& data) {
  IC_TRY(std::unique_ptr<Channel> channel, open(address, options));
  Result<nvme::Connected> connected = channel->connect(connect, data);
  if (!connected.ok() && connected.error().kind() == kCapsuleKind && options.sending == Sending::in_capsule) {
    // Linux takes the data behind the capsule for a PDU then, and ends the connection.
    ChannelOptions anew = options;
    anew.sending = Sending::when_asked;
    IC_TRY(channel, open(address, anew));
    connected = channel->connect(connect, data);
  }
  if (!connected.ok()) return connected.error();
  return Opened{.channel = std::move(channel), .connected = *connected};
}

Result<nvme::Connected> Channel::connect(const nvme::Connect& connect, const nvme::ConnectData& data) {
  std::vector<std::byte> bytes(nvme::kConnectDataBytes);
  nvme::encode(data, std::span<std::byte, nvme::kConnectDataBytes>(bytes.data(), bytes.size()));
  IC_TRY(const Reply reply, command(nvme::encode_connect(connect), bytes, 0));
  if (!reply.status.ok()) return refused(reply, connect, data);
  return nvme::decode_connected(reply.result);
}

Error Channel::refused(const Reply& reply, const nvme::Connect& connect, const nvme::ConnectData& data) const {
  // An I/O queue is refused as well when its controller was lost meanwhile: then it is to be made anew.
  const bool for_good = connect.queue_id == 0 && reply.status.retry == nvme::Retry::will_not_help;
  Error refused(for_good ? ErrorCode::not_found : ErrorCode::io,
                peer_ + ": the target refuses to connect to " + data.subsystem_nqn + ": " + reply.status.to_string());
  const nvme::CommandStatus& status = reply.status;
  if (status == nvme::kConnectInvalidHost) {
    return Error(ErrorCode::permission, peer_ + ": the target does not admit " + data.host_nqn)
        .with_hint("Allow this host there (infercluster target --allow NQN)");
  }
  if (status.type == nvme::kConnectInvalidParameters.type && status.code == nvme::kConnectInvalidParameters.code) {
    return std::move(refused).with_hint("Is the NQN right? The target's discovery service names what it has");
  }
  if (status.type == nvme::kSglOffsetInvalid.type && status.code == nvme::kSglOffsetInvalid.code) {
    return std::move(refused)
        .with_kind(kCapsuleKind)
        .with_hint("It takes no data, in the capsule or when it asks for it: let it take 8,192 bytes in capsules");
  }
  if (status.type == nvme::kConnectControllerBusy.type && status.code == nvme::kConnectControllerBusy.code) {
    return std::move(refused).with_hint("It has as many hosts as it takes: try again later");
  }
  return refused;
}

}  // namespace infercluster::initiator
