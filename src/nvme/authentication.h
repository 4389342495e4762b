// SPDX-License-Identifier: Apache-2.0
// DH-HMAC-CHAP as each end of a queue goes through it, without Diffie-Hellman (the null group): NVM Express Base
// Specification 2.0, section 8.13.5. State machines without transport and clock: messages in, messages out. Randomness
// comes from the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "nvme/auth_message.h"
#include "nvme/auth_secret.h"

namespace infercluster::nvme {

// Who talks with whom: responses hold for these names alone.
struct AuthParties {
  std::string host_nqn;
  std::string subsystem_nqn;
};

// What a response answers.
struct AuthQuestion {
  checksum::Sha2 hash = checksum::Sha2::sha256;
  std::span<const std::byte> challenge;
  std::uint32_t sequence = 0;
  std::uint16_t transaction = 0;
};
// The host's response to a controller's challenge, and the controller's to a host's, where there is no secure channel.
std::vector<std::byte> host_response(const Secret& secret, const AuthParties& parties, const AuthQuestion& question);
std::vector<std::byte> controller_response(const Secret& secret, const AuthParties& parties,
                                           const AuthQuestion& question);

using FillRandom = std::function<void(std::span<std::byte>)>;

// The controller's end. Thread rule: one thread at a time.
class ControllerAuthentication {
 public:
  // `credentials` must outlive it.
  ControllerAuthentication(const Credentials& credentials, AuthParties parties, FillRandom random)
      : credentials_(credentials), parties_(std::move(parties)), random_(std::move(random)) {}

  // What an Authentication Send brought. A host may begin again at any time, also when it is authenticated.
  void take(std::span<const std::byte> message);
  // Whether an Authentication Receive has something to fetch, and the message.
  [[nodiscard]] bool due() const;
  [[nodiscard]] std::vector<std::byte> give();

  // The host has proven itself (and the controller itself, where the host asked for it), and has not failed since.
  [[nodiscard]] bool authenticated() const { return authenticated_; }
  // It failed, and the host knows: the queue is to end.
  [[nodiscard]] bool failed() const { return state_ == State::failed; }
  // Why, for those who run the target. The host is told no more than AuthReason.
  [[nodiscard]] const std::string& fault() const { return fault_; }

 private:
  enum class State : std::uint8_t {
    idle,
    challenge_due,
    reply_awaited,
    success1_due,
    success2_awaited,
    failure1_due,
    failed,
  };
  void fail(AuthReason reason, std::string why);
  void on(const AuthNegotiate& message);
  void on(const AuthReply& message);
  void on(const AuthSuccess2& message);
  void on(const AuthFailure& message);
  void on(const AuthChallenge& message);
  void on(const AuthSuccess1& message);
  bool expected(State state, std::uint16_t transaction, const AuthMessage& message);
  std::vector<std::byte> give_challenge();

  const Credentials& credentials_;
  const AuthParties parties_;
  const FillRandom random_;
  State state_ = State::idle;
  bool authenticated_ = false;
  std::string fault_;
  AuthReason reason_ = AuthReason::failed;
  std::uint16_t transaction_ = 0;
  checksum::Sha2 hash_ = checksum::Sha2::sha256;
  std::uint32_t sequence_ = 0;
  std::vector<std::byte> challenge_;
  std::vector<std::byte> response_;  // to the host's challenge; empty: it set none
};

// The host's end. Thread rule: one thread at a time.
class HostAuthentication {
 public:
  // `credentials` must outlive it. With a controller's secret it asks the controller for proof.
  HostAuthentication(const Credentials& credentials, AuthParties parties, std::uint16_t transaction, FillRandom random)
      : credentials_(credentials),
        parties_(std::move(parties)),
        transaction_(transaction),
        random_(std::move(random)) {}

  // What to do next: send `message` unless it is empty; then `end` says how it ended, or nullopt that the controller's
  // next message is to be received and taken.
  struct Step {
    std::vector<std::byte> message;
    std::optional<Status> end;
  };
  Step begin();
  // Errors: permission (the controller refuses, or does not prove itself); unsupported (nothing in common); corrupt (it
  // breaks the protocol).
  Step take(std::span<const std::byte> message);

 private:
  Step on(const AuthChallenge& message);
  Step on(const AuthSuccess1& message);
  Step refuse(AuthReason reason, Error error) const;
  Step broken(AuthReason reason, const std::string& what) const;

  const Credentials& credentials_;
  const AuthParties parties_;
  const std::uint16_t transaction_;
  const FillRandom random_;
  bool replied_ = false;
  checksum::Sha2 hash_ = checksum::Sha2::sha256;
  std::vector<std::byte> expected_;  // response to our challenge; empty: there was none
};

}  // namespace infercluster::nvme
