// SPDX-License-Identifier: Apache-2.0
#include "initiator/authenticate.h"

#include <array>
#include <string>
#include <utility>

#include "base/random.h"
#include "nvme/authentication.h"
#include "nvme/bytes.h"

namespace infercluster::initiator {
namespace {

std::uint16_t random_transaction() {
  std::array<std::byte, 2> bytes{};
  fill_random(bytes);
  return nvme::load<std::uint16_t>(bytes, 0);
}

Error at_peer(const Channel& channel, const Error& error) {
  return Error(error.code(), channel.peer() + ": " + error.message()).with_hint(error.hint());
}

Status send(Channel& channel, std::span<const std::byte> message) {
  const nvme::Command command = nvme::encode_authentication(nvme::FabricsType::authentication_send,
                                                            {.length = static_cast<std::uint32_t>(message.size())});
  IC_TRY(const Channel::Reply reply, channel.command(command, message, 0));
  if (reply.status.ok()) return {};
  return Error(ErrorCode::io,
               channel.peer() + ": the target refuses a message of the authentication: " + reply.status.to_string());
}

Result<std::vector<std::byte>> receive(Channel& channel) {
  constexpr auto kBytes = static_cast<std::uint32_t>(nvme::kAuthMessageBytesMax);
  const nvme::Command command =
      nvme::encode_authentication(nvme::FabricsType::authentication_receive, {.length = kBytes});
  IC_TRY(Channel::Reply reply, channel.command(command, {}, kBytes, Channel::Data::up_to));
  if (reply.status.ok()) return std::move(reply.data);
  return Error(ErrorCode::io,
               channel.peer() + ": the target does not answer the authentication: " + reply.status.to_string());
}

}  // namespace

Status authenticate(Channel& channel, const nvme::Connected& connected, const nvme::ConnectData& self,
                    const std::optional<nvme::Credentials>& credentials) {
  if (!connected.authentication_required) {
    if (!credentials || !credentials->controller) return {};
    return Error(ErrorCode::permission,
                 channel.peer() + ": the target does not ask for authentication, and so cannot prove itself")
        .with_hint(
            "Configure this host's secret and its own there, or leave the controller's secret "
            "(--dhchap-ctrl-secret-file) out here");
  }
  if (!credentials) {
    return Error(ErrorCode::permission,
                 channel.peer() + ": the target asks for authentication, and there is no secret for this host")
        .with_hint("Give the secret that the target has for " + self.host_nqn + " with --dhchap-secret-file FILE");
  }
  nvme::HostAuthentication exchange(*credentials, {.host_nqn = self.host_nqn, .subsystem_nqn = self.subsystem_nqn},
                                    random_transaction(), fill_random);
  nvme::HostAuthentication::Step step = exchange.begin();
  for (;;) {
    const Status sent = step.message.empty() ? Status() : send(channel, step.message);
    // Why this host gives up says more than what becomes of telling it.
    if (step.end && !step.end->ok()) return at_peer(channel, step.end->error());
    IC_CHECK(sent);
    if (step.end) return {};
    IC_TRY(const std::vector<std::byte> message, receive(channel));
    step = exchange.take(message);
  }
}

}  // namespace infercluster::initiator
