// SPDX-License-Identifier: Apache-2.0
#include "target/queue_authentication.h"

#include <utility>

#include "base/random.h"

namespace infercluster::target {
namespace {

constexpr std::uint16_t kDhchapSpecific = 0x0101;
// The longest message of a controller without Diffie-Hellman.
constexpr std::uint32_t kMessageBytesMax = 16 + nvme::kAuthDigestBytesMax;
// What a host may make room for: Linux takes 4 KiB.
constexpr std::uint32_t kReceiveBytesMax = 64U << 10;

nvme::Reply reply(nvme::CommandStatus status) {
  return {.status = status, .result = 0, .data = {}, .held = false};
}

}  // namespace

QueueAuthentication::QueueAuthentication(const nvme::Credentials& credentials, nvme::AuthParties parties,
                                         Clock::TimePoint deadline)
    : host_nqn_(parties.host_nqn), deadline_(deadline), exchange_(credentials, std::move(parties), fill_random) {}

bool QueueAuthentication::concerns(const nvme::Command& command) {
  if (command.opcode != nvme::kFabrics) return false;
  const nvme::FabricsType type = nvme::fabrics_type(command);
  return type == nvme::FabricsType::authentication_send || type == nvme::FabricsType::authentication_receive;
}

nvme::Reply QueueAuthentication::answer(const nvme::Command& command, std::span<const std::byte> in_capsule) {
  const nvme::AuthenticationTransfer transfer = nvme::decode_authentication(command);
  if (transfer.protocol != nvme::kSecurityProtocolNvme || transfer.specific != kDhchapSpecific)
    return reply(nvme::kInvalidField);
  if (transfer.length != command.sgl.length) return reply(nvme::kDataSglLengthInvalid);
  return nvme::fabrics_type(command) == nvme::FabricsType::authentication_send ? send(command, in_capsule)
                                                                               : receive(command);
}

nvme::Reply QueueAuthentication::send(const nvme::Command& command, std::span<const std::byte> in_capsule) {
  // Hosts put the data of Fabrics commands in the capsule: this target asks for none.
  if (command.sgl.identifier != nvme::kSglInCapsule || command.sgl.address != 0) return reply(nvme::kSglTypeInvalid);
  if (command.sgl.length != in_capsule.size()) return reply(nvme::kDataSglLengthInvalid);
  if (in_capsule.empty() || in_capsule.size() > nvme::kAuthMessageBytesMax) return reply(nvme::kInvalidField);
  exchange_.take(in_capsule);
  return reply(nvme::kSuccess);
}

nvme::Reply QueueAuthentication::receive(const nvme::Command& command) {
  if (command.sgl.identifier != nvme::kSglTransport) return reply(nvme::kSglTypeInvalid);
  if (command.sgl.length < kMessageBytesMax || command.sgl.length > kReceiveBytesMax) return reply(nvme::kInvalidField);
  if (!exchange_.due()) return reply(nvme::kCommandSequenceError);
  nvme::Reply answer = reply(nvme::kSuccess);
  answer.data = exchange_.give();
  answer.data.resize(command.sgl.length);
  return answer;
}

std::string QueueAuthentication::refusal() const {
  const std::string& why = exchange_.fault();
  return host_nqn_ + " is not authenticated: " + (why.empty() ? "it gave no proof (has it a secret?)" : why);
}

}  // namespace infercluster::target
