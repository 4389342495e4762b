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
  IC_CHECK(channel->initialize());
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
  return Error(ErrorCode::corrupt, peer_ + ": the target breaks the NVMe/TCP protocol: " + std::string(what));
}

Status Channel::initialize() {
  const Clock::TimePoint deadline = this->deadline();
  std::array<std::byte, nvme::kPreludeBytesMax> bytes{};
  const std::size_t length = nvme::encode_prelude(
      {.type = nvme::PduType::initialize_request,
       .flags = 0,
       .body = nvme::InitializeRequest{.format = 0, .alignment = 0, .digests = options_.digests, .ready_max = 0}},
      {}, bytes);
  IC_CHECK(send(std::span(bytes).first(length), deadline));
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
  capsule_alignment_ = 4U * (response->alignment + 1U);
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

Error Channel::at_fault() const {
  const nvme::Fault& fault = reader_.fault();
  const bool digest = fault.terminate.status == nvme::FatalStatus::header_digest_error;
  return broken(fault.message).with_kind(digest ? kDigestKind : "");
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

Result<Channel::Reply> Channel::command(nvme::Command command, std::span<const std::byte> in_capsule,
                                        std::uint32_t data_bytes, Data wanted) {
  const Clock::TimePoint deadline = this->deadline();
  command.cid = next_cid_++;
  if (!in_capsule.empty()) {
    command.sgl = {
        .address = 0, .length = static_cast<std::uint32_t>(in_capsule.size()), .identifier = nvme::kSglInCapsule};
  } else {
    command.sgl = {.address = 0, .length = data_bytes, .identifier = nvme::kSglTransport};
  }
  std::array<std::byte, nvme::kPreludeBytesMax> prelude{};
  const std::size_t length = nvme::encode_prelude({.type = nvme::PduType::command, .flags = 0, .body = command},
                                                  {.digests = digests_,
                                                   .data_length = static_cast<std::uint32_t>(in_capsule.size()),
                                                   .data_alignment = capsule_alignment_},
                                                  prelude);
  std::vector<std::byte> capsule(prelude.begin(), prelude.begin() + static_cast<std::ptrdiff_t>(length));
  capsule.insert(capsule.end(), in_capsule.begin(), in_capsule.end());
  if (digests_.data && !in_capsule.empty()) {
    capsule.resize(capsule.size() + nvme::kDigestBytes);
    nvme::store<std::uint32_t>(capsule, capsule.size() - nvme::kDigestBytes, nvme::digest_of(in_capsule));
  }
  IC_CHECK(send(capsule, deadline));

  Reply reply;
  reply.data.resize(data_bytes);
  std::uint32_t received = 0;
  for (;;) {
    IC_TRY(const Progress progress, receive(deadline));
    if (progress == Progress::more) continue;
    const nvme::Pdu& pdu = reader_.pdu();
    if (const auto* data = std::get_if<nvme::DataHeader>(&pdu.body);
        data != nullptr && pdu.type == nvme::PduType::target_data) {
      if (progress == Progress::header) {
        if (data->cid != command.cid || data->offset != received || data->length > data_bytes - received)
          return broken("data that nobody asked for");
        reader_.place(std::span(reply.data).subspan(received, data->length));
        continue;
      }
      if (!reader_.data_intact()) return broken("the digest of its data is wrong");
      received += data->length;
      if ((pdu.flags & nvme::kSuccessFlag) == 0) continue;
    } else if (progress == Progress::header) {
      continue;  // what a termination carries is dropped
    } else if (const auto* completion = std::get_if<nvme::Completion>(&pdu.body)) {
      if (completion->cid != command.cid) return broken("a completion of no command");
      reply.status = completion->status;
      reply.result = completion->result;
    } else if (const auto* terminate = std::get_if<nvme::Terminate>(&pdu.body)) {
      return Error(ErrorCode::io,
                   peer_ + ": the target ended the connection: " + std::string(name_of(terminate->status)));
    } else {
      return broken("unexpected " + std::string(name_of(pdu.type)));
    }
    if (reply.status.ok() && received != data_bytes && wanted == Data::all) {
      return broken("a command that wanted " + std::to_string(data_bytes) + " bytes succeeded with " +
                    std::to_string(received));
    }
    reply.data.resize(reply.status.ok() ? received : 0);
    return reply;
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

Result<nvme::Connected> Channel::connect(const nvme::Connect& connect, const nvme::ConnectData& data) {
  std::vector<std::byte> bytes(nvme::kConnectDataBytes);
  nvme::encode(data, std::span<std::byte, nvme::kConnectDataBytes>(bytes.data(), bytes.size()));
  IC_TRY(const Reply reply, command(nvme::encode_connect(connect), bytes, 0));
  if (reply.status.ok()) return nvme::decode_connected(reply.result);
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
    return std::move(refused).with_hint(
        "Connect bears 1,024 bytes in its capsule: let the target take as many (nvmet: param_inline_data_size)");
  }
  if (status.type == nvme::kConnectControllerBusy.type && status.code == nvme::kConnectControllerBusy.code) {
    return std::move(refused).with_hint("It has as many hosts as it takes: try again later");
  }
  return refused;
}

}  // namespace infercluster::initiator
