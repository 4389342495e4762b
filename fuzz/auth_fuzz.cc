// SPDX-License-Identifier: Apache-2.0
// Any bytes as messages of DH-HMAC-CHAP, each with whom it goes to and its length. What must hold: no fault of memory;
// what is taken for a message is written again to one that reads as the same; nobody counts as authenticated who has
// not given the right reply to the challenge that stands; a host that asks for proof takes nothing else for it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/assert.h"
#include "nvme/authentication.h"
#include "nvme/bytes.h"

namespace infercluster::nvme {
namespace {

constexpr const char* kHostSecret = "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
constexpr const char* kControllerSecret = "DHHC-1:01:ZWZnaGlqa2xtbm9wcXJzdHV2d3h5ent8fX5/gIGCg4QqhWEu:";

void check_round_trip(std::span<const std::byte> bytes) {
  const auto decoded = decode_auth_message(bytes);
  if (const auto* message = std::get_if<AuthMessage>(&decoded)) {
    IC_ASSERT(decode_auth_message(encode(*message)).index() == 0);
    IC_ASSERT(std::get<AuthMessage>(decode_auth_message(encode(*message))) == *message);
  } else {
    IC_ASSERT(!std::get<AuthFault>(decoded).message.empty());
  }
}

class Ends {
 public:
  Ends() { (void)host_.begin(); }

  void to_controller(std::span<const std::byte> message) {
    check_round_trip(message);
    controller_.take(message);
    fetch();
  }

  void right_reply_to_controller(std::span<const std::byte> changes) {
    if (!challenge_) return;
    AuthReply reply{.transaction = challenge_->transaction,
                    .sequence = 3,
                    .response = host_response(credentials_.host, parties_,
                                              {.hash = static_cast<checksum::Sha2>(challenge_->hash - 1),
                                               .challenge = challenge_->challenge,
                                               .sequence = challenge_->sequence,
                                               .transaction = challenge_->transaction}),
                    .challenge = std::vector<std::byte>(challenge_->challenge.size(), std::byte{7}),
                    .group_value = {}};
    std::vector<std::byte> bytes = encode(reply);
    for (std::size_t i = 0; i < std::min(bytes.size(), changes.size()); ++i) bytes[i] ^= changes[i];
    const auto changed = decode_auth_message(bytes);
    const auto* message = std::get_if<AuthMessage>(&changed);
    const auto* still = message == nullptr ? nullptr : std::get_if<AuthReply>(message);
    if (still != nullptr && still->response == reply.response && still->transaction == reply.transaction)
      proven_ = true;
    to_controller(bytes);
  }

  void to_host(std::span<const std::byte> message) {
    check_round_trip(message);
    if (host_ended_) return;
    const HostAuthentication::Step step = host_.take(message);
    host_ended_ = step.end.has_value();
    IC_ASSERT(!host_ended_ || !step.end->ok());
    IC_ASSERT(host_ended_ || !step.message.empty());
  }

 private:
  void fetch() {
    if (controller_.due()) {
      const auto given = decode_auth_message(controller_.give());
      if (const auto* challenge = std::get_if<AuthChallenge>(&std::get<AuthMessage>(given))) challenge_ = *challenge;
    }
    IC_ASSERT(!controller_.authenticated() || proven_);
    IC_ASSERT(!controller_.failed() || (!controller_.authenticated() && !controller_.fault().empty()));
  }

  const Credentials credentials_{.host = *Secret::parse(kHostSecret), .controller = *Secret::parse(kControllerSecret)};
  const AuthParties parties_{.host_nqn = "nqn.2026-01.io.test:host", .subsystem_nqn = "nqn.2026-01.io.test:pool"};
  unsigned next_ = 1;
  const FillRandom random_ = [this](std::span<std::byte> bytes) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(next_++ * 37 % 251);
  };
  ControllerAuthentication controller_{credentials_, parties_, random_};
  HostAuthentication host_{credentials_, parties_, 77, random_};
  std::optional<AuthChallenge> challenge_;
  bool proven_ = false;
  bool host_ended_ = false;
};

void check(std::span<const std::byte> input) {
  constexpr std::size_t kPrefixBytes = 3;
  Ends ends;
  while (input.size() >= kPrefixBytes) {
    const auto to = load<std::uint8_t>(input, 0);
    const std::size_t length = std::min<std::size_t>(load<std::uint16_t>(input, 1), input.size() - kPrefixBytes);
    const std::span<const std::byte> message = input.subspan(kPrefixBytes, length);
    input = input.subspan(kPrefixBytes + length);
    if (to % 3 == 0) ends.to_controller(message);
    if (to % 3 == 1) ends.to_host(message);
    if (to % 3 == 2) ends.right_reply_to_controller(message);
  }
}

}  // namespace
}  // namespace infercluster::nvme

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  infercluster::nvme::check(std::as_bytes(std::span(data, size)));
  return 0;
}
