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

using Progress = nvme::PduReader::Progress;

}  // namespace

Channel::Channel(Fd socket, std::string peer, const ChannelOptions& options)
    : socket_(std::move(socket)),
      peer_(std::move(peer)),
      options_(options),
      reader_(nvme::Side::host, {.data_max = kDataMax, .in_capsule_max = 0, .data_alignment = 4}) {}

Result<std::unique_ptr<Channel>> Channel::open(const os::SocketAddress& address, const ChannelOptions& options) {
  IC_TRY(Fd socket, os::connect_tcp(address, options.timeout));
  IC_CHECK(os::send_at_once(socket));
  std::unique_ptr<Channel> channel(new Channel(std::move(socket), address.to_string(), options));
  IC_CHECK(channel->initialize());
  return channel;
}

Error Channel::broken(std::string_view what) const {
  return Error(ErrorCode::corrupt, peer_ + ": the target breaks the NVMe/TCP protocol: " + std::string(what));
}

Status Channel::initialize() {
  const Clock::TimePoint deadline = steady_clock().now() + options_.timeout;
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

Status Channel::send(std::span<const std::byte> bytes, Clock::TimePoint deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return Error::from_errno(errno, "cannot send to " + peer_);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock().now()).count();
    pollfd waited{.fd = socket_.get(), .events = POLLOUT, .revents = 0};
    if (left <= 0 || poll(&waited, 1, static_cast<int>(left)) == 0) {
      return Error(ErrorCode::timed_out, peer_ + ": the target takes nothing");
    }
  }
  return {};
}

Result<Progress> Channel::take(std::span<std::byte> room) {
  const std::size_t count = std::min(room.size(), staged_end_ - staged_begin_);
  std::memcpy(room.data(), staged_.data() + staged_begin_, count);
  staged_begin_ += count;
  const Progress progress = reader_.filled(count);
  if (progress == Progress::fault) return broken(reader_.fault().message);
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
      if (progress == Progress::fault) return broken(reader_.fault().message);
      return progress;
    }
    if (got > 0) {
      staged_end_ = static_cast<std::size_t>(got);
      return take(room);
    }
    if (got == 0) return Error(ErrorCode::io, peer_ + ": the target closed the connection").with_errno(ECONNRESET);
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return Error::from_errno(errno, "cannot receive from " + peer_);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock().now()).count();
    pollfd waited{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    if (left <= 0 || poll(&waited, 1, static_cast<int>(left)) == 0) {
      return Error(ErrorCode::timed_out, peer_ + ": the target says nothing")
          .with_hint("Is it stopped, or the network between cut?");
    }
  }
}

Result<Channel::Reply> Channel::command(nvme::Command command, std::span<const std::byte> in_capsule,
                                        std::uint32_t data_bytes, Data wanted) {
  const Clock::TimePoint deadline = steady_clock().now() + options_.timeout;
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
  if (!reply.status.ok())
    return Error(ErrorCode::io, peer_ + ": the target refuses " + std::string(what) + ": " + reply.status.to_string());
  return reply;
}

Result<nvme::Connected> Channel::connect(const nvme::Connect& connect, const nvme::ConnectData& data) {
  std::vector<std::byte> bytes(nvme::kConnectDataBytes);
  nvme::encode(data, std::span<std::byte, nvme::kConnectDataBytes>(bytes.data(), bytes.size()));
  IC_TRY(const Reply reply, command(nvme::encode_connect(connect), bytes, 0));
  if (reply.status.ok()) return nvme::decode_connected(reply.result);
  Error refused(ErrorCode::io,
                peer_ + ": the target refuses to connect to " + data.subsystem_nqn + ": " + reply.status.to_string());
  const nvme::CommandStatus& status = reply.status;
  if (status == nvme::kConnectInvalidHost) {
    return Error(ErrorCode::permission, peer_ + ": the target does not admit " + data.host_nqn)
        .with_hint("Allow this host there (infercluster target --allow NQN)");
  }
  if (status.type == nvme::kConnectInvalidParameters.type && status.code == nvme::kConnectInvalidParameters.code) {
    return std::move(refused).with_hint("Is the NQN right? The target's discovery service names what it has");
  }
  if (status.type == nvme::kConnectControllerBusy.type && status.code == nvme::kConnectControllerBusy.code) {
    return std::move(refused).with_hint("It has as many hosts as it takes: try again later");
  }
  return refused;
}

}  // namespace infercluster::initiator
