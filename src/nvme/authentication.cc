// SPDX-License-Identifier: Apache-2.0
#include "nvme/authentication.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/assert.h"
#include "nvme/bytes.h"

namespace infercluster::nvme {
namespace {

using checksum::Sha2;

// Strongest first.
constexpr std::array kHashes{Sha2::sha512, Sha2::sha384, Sha2::sha256};

constexpr std::uint8_t id_of(Sha2 hash) {
  return static_cast<std::uint8_t>(static_cast<unsigned>(hash) + 1);
}

std::optional<Sha2> hash_of(std::uint8_t id) {
  for (const Sha2 hash : kHashes) {
    if (id_of(hash) == id) return hash;
  }
  return std::nullopt;
}

bool contains(const std::vector<std::uint8_t>& list, std::uint8_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// The hash that is as strong as the key, or else the strongest that the host does.
std::optional<Sha2> choose_hash(const std::vector<std::uint8_t>& offered, std::size_t key_bytes) {
  std::optional<Sha2> chosen;
  for (const Sha2 hash : kHashes) {
    if (!contains(offered, id_of(hash))) continue;
    if (checksum::digest_bytes(hash) == key_bytes) return hash;
    if (!chosen) chosen = hash;
  }
  return chosen;
}

struct Roles {
  std::string_view title;
  std::string_view owner;  // of the secret
  std::string_view other;
};
std::vector<std::byte> respond(const Secret& secret, const Roles& roles, const AuthQuestion& question) {
  constexpr std::size_t kNumberBytes = 7;  // sequence, transaction, and SC_C, which is 0
  std::vector<std::byte> text(question.challenge.begin(), question.challenge.end());
  text.resize(text.size() + kNumberBytes);
  store<std::uint32_t>(text, question.challenge.size(), question.sequence);
  store<std::uint16_t>(text, question.challenge.size() + 4, question.transaction);
  const auto append = [&](std::string_view part) {
    const auto bytes = std::as_bytes(std::span(part));
    text.insert(text.end(), bytes.begin(), bytes.end());
  };
  append(roles.title);
  append(roles.owner);
  text.push_back(std::byte{0});
  append(roles.other);
  std::vector<std::byte> key = secret.transformed(roles.owner);
  std::vector<std::byte> response = checksum::hmac(question.hash, key, text);
  checksum::wipe(key);
  return response;
}

std::vector<std::byte> random_challenge(Sha2 hash, const FillRandom& random) {
  std::vector<std::byte> challenge(checksum::digest_bytes(hash));
  random(challenge);
  return challenge;
}

// Never 0, which would mean that no proof is asked for.
std::uint32_t random_sequence(const FillRandom& random) {
  std::array<std::byte, 4> bytes{};
  random(bytes);
  return std::max<std::uint32_t>(load<std::uint32_t>(bytes, 0), 1);
}

std::string host_says(AuthReason reason) {
  return "the host gave up: " + std::string(name_of(reason));
}

}  // namespace

std::vector<std::byte> host_response(const Secret& secret, const AuthParties& parties, const AuthQuestion& question) {
  return respond(secret, {.title = "HostHost", .owner = parties.host_nqn, .other = parties.subsystem_nqn}, question);
}

std::vector<std::byte> controller_response(const Secret& secret, const AuthParties& parties,
                                           const AuthQuestion& question) {
  return respond(secret, {.title = "Controller", .owner = parties.subsystem_nqn, .other = parties.host_nqn}, question);
}

void ControllerAuthentication::take(std::span<const std::byte> message) {
  if (state_ == State::failed || state_ == State::failure1_due) return;
  const std::variant<AuthMessage, AuthFault> decoded = decode_auth_message(message);
  if (const auto* fault = std::get_if<AuthFault>(&decoded))
    return fail(fault->reason, "the host sent " + fault->message);
  std::visit([this](const auto& one) { on(one); }, std::get<AuthMessage>(decoded));
}

void ControllerAuthentication::fail(AuthReason reason, std::string why) {
  authenticated_ = false;
  state_ = State::failure1_due;
  reason_ = reason;
  fault_ = std::move(why);
}

bool ControllerAuthentication::expected(State state, std::uint16_t transaction, const AuthMessage& message) {
  if (state_ != state) {
    fail(AuthReason::incorrect_message, "the host sent a " + std::string(name_of(message)) + " out of turn");
  } else if (transaction != transaction_) {
    fail(AuthReason::incorrect_payload, "the host sent a " + std::string(name_of(message)) + " of another transaction");
  }
  return state_ == state;
}

void ControllerAuthentication::on(const AuthNegotiate& message) {
  transaction_ = message.transaction;
  if (message.secure_channel != 0) {
    return fail(AuthReason::secure_channel_mismatch, "the host asks for a secure channel, which this target has not");
  }
  const std::optional<Sha2> hash = choose_hash(message.hashes, credentials_.host.bytes());
  if (!hash) return fail(AuthReason::hash_unusable, "the host does none of SHA-256, SHA-384 and SHA-512");
  if (!contains(message.groups, kAuthGroupNull)) {
    return fail(AuthReason::group_unusable, "the host insists on Diffie-Hellman, which this target does not do");
  }
  hash_ = *hash;
  state_ = State::challenge_due;
}

void ControllerAuthentication::on(const AuthReply& message) {
  if (!expected(State::reply_awaited, message.transaction, message)) return;
  if (message.response.size() != challenge_.size() || !message.group_value.empty()) {
    return fail(AuthReason::incorrect_payload, "the host's response has another length than its hash");
  }
  const std::vector<std::byte> right =
      host_response(credentials_.host, parties_,
                    {.hash = hash_, .challenge = challenge_, .sequence = sequence_, .transaction = transaction_});
  if (!checksum::equal_secrets(message.response, right)) {
    return fail(AuthReason::failed, "the host's secret is not the one that is configured for it");
  }
  response_.clear();
  if (!message.challenge.empty() && message.sequence != 0) {
    if (!credentials_.controller) {
      return fail(AuthReason::failed,
                  "the host wants this target to prove itself, and no secret is configured for that");
    }
    if (message.challenge == challenge_) {
      return fail(AuthReason::failed, "the host sent back the challenge that was set to it");
    }
    response_ = controller_response(
        *credentials_.controller, parties_,
        {.hash = hash_, .challenge = message.challenge, .sequence = message.sequence, .transaction = transaction_});
  }
  state_ = State::success1_due;
}

void ControllerAuthentication::on(const AuthSuccess2& message) {
  if (!expected(State::success2_awaited, message.transaction, message)) return;
  authenticated_ = true;
  state_ = State::idle;
}

void ControllerAuthentication::on(const AuthFailure& message) {
  if (message.from == AuthSide::controller) {
    return fail(AuthReason::incorrect_message, "the host sent an AUTH_Failure1, which is the controller's");
  }
  // Nothing is said to that.
  fail(message.reason, host_says(message.reason));
  state_ = State::failed;
}

void ControllerAuthentication::on(const AuthChallenge&) {
  fail(AuthReason::incorrect_message, "the host sent a challenge, which is the controller's to set");
}

void ControllerAuthentication::on(const AuthSuccess1&) {
  fail(AuthReason::incorrect_message, "the host sent a DH-HMAC-CHAP_Success1, which is the controller's");
}

bool ControllerAuthentication::due() const {
  return state_ == State::challenge_due || state_ == State::success1_due || state_ == State::failure1_due;
}

std::vector<std::byte> ControllerAuthentication::give_challenge() {
  challenge_ = random_challenge(hash_, random_);
  sequence_ = sequence_ == 0 ? random_sequence(random_) : sequence_ + 1;
  if (sequence_ == 0) sequence_ = 1;
  state_ = State::reply_awaited;
  return encode(AuthChallenge{.transaction = transaction_,
                              .hash = id_of(hash_),
                              .group = kAuthGroupNull,
                              .sequence = sequence_,
                              .challenge = challenge_,
                              .group_value = {}});
}

std::vector<std::byte> ControllerAuthentication::give() {
  IC_ASSERT(due());
  if (state_ == State::challenge_due) return give_challenge();
  if (state_ == State::failure1_due) {
    state_ = State::failed;
    return encode(AuthFailure{.from = AuthSide::controller, .transaction = transaction_, .reason = reason_});
  }
  // Who asked for proof says whether it convinces; everybody else is done.
  state_ = response_.empty() ? State::idle : State::success2_awaited;
  if (response_.empty()) authenticated_ = true;
  return encode(AuthSuccess1{.transaction = transaction_,
                             .digest_bytes = static_cast<std::uint8_t>(challenge_.size()),
                             .response = response_});
}

HostAuthentication::Step HostAuthentication::begin() {
  AuthNegotiate message{.transaction = transaction_, .secure_channel = 0, .hashes = {}, .groups = {}};
  for (const Sha2 hash : {Sha2::sha256, Sha2::sha384, Sha2::sha512}) message.hashes.push_back(id_of(hash));
  // Linux's target (nvmet, 6.1 to 6.12) refuses who names the null group alone, even when that is what it is set to: it
  // wants to see another one beside it. The vendors' last says nothing that is not true.
  message.groups = {kAuthGroupNull, kAuthGroupVendor};
  return {.message = encode(message), .end = std::nullopt};
}

HostAuthentication::Step HostAuthentication::refuse(AuthReason reason, Error error) const {
  return {.message = encode(AuthFailure{.from = AuthSide::host, .transaction = transaction_, .reason = reason}),
          .end = std::move(error)};
}

HostAuthentication::Step HostAuthentication::broken(AuthReason reason, const std::string& what) const {
  return refuse(reason, Error(ErrorCode::corrupt, "the target breaks the authentication protocol: " + what));
}

HostAuthentication::Step HostAuthentication::take(std::span<const std::byte> message) {
  const std::variant<AuthMessage, AuthFault> decoded = decode_auth_message(message);
  if (const auto* fault = std::get_if<AuthFault>(&decoded)) return broken(fault->reason, "it sent " + fault->message);
  const AuthMessage& known = std::get<AuthMessage>(decoded);
  if (const auto* failure = std::get_if<AuthFailure>(&known);
      failure != nullptr && failure->from == AuthSide::controller) {
    Error error(ErrorCode::permission,
                "the target refuses the authentication: " + std::string(name_of(failure->reason)));
    if (failure->reason != AuthReason::failed) return {.message = {}, .end = std::move(error)};
    const char* hint = credentials_.controller
                           ? "Are both secrets the same at the target, and does it have one for itself?"
                           : "Is the secret the one that the target has for this host's NQN?";
    return {.message = {}, .end = std::move(error).with_hint(hint)};
  }
  const auto* challenge = std::get_if<AuthChallenge>(&known);
  if (challenge != nullptr && !replied_) return on(*challenge);
  const auto* success = std::get_if<AuthSuccess1>(&known);
  if (success != nullptr && replied_) return on(*success);
  return broken(AuthReason::incorrect_message, "it sent a " + std::string(name_of(known)) + " out of turn");
}

HostAuthentication::Step HostAuthentication::on(const AuthChallenge& message) {
  if (message.transaction != transaction_) {
    return broken(AuthReason::incorrect_payload, "its challenge is of another transaction");
  }
  const std::optional<Sha2> hash = hash_of(message.hash);
  if (!hash) return broken(AuthReason::hash_unusable, "it chose hash " + std::to_string(message.hash));
  if (message.group != kAuthGroupNull) {
    return refuse(AuthReason::group_unusable, Error(ErrorCode::unsupported, "the target insists on Diffie-Hellman")
                                                  .with_hint("Set its DH group to null for this host"));
  }
  if (message.challenge.size() != checksum::digest_bytes(*hash) || !message.group_value.empty()) {
    return broken(AuthReason::incorrect_payload, "its challenge has another length than its hash");
  }
  hash_ = *hash;
  replied_ = true;
  AuthReply reply{.transaction = transaction_, .sequence = 0, .response = {}, .challenge = {}, .group_value = {}};
  reply.response = host_response(
      credentials_.host, parties_,
      {.hash = hash_, .challenge = message.challenge, .sequence = message.sequence, .transaction = transaction_});
  if (credentials_.controller) {
    reply.sequence = random_sequence(random_);
    reply.challenge = random_challenge(hash_, random_);
    expected_ = controller_response(
        *credentials_.controller, parties_,
        {.hash = hash_, .challenge = reply.challenge, .sequence = reply.sequence, .transaction = transaction_});
  }
  return {.message = encode(reply), .end = std::nullopt};
}

HostAuthentication::Step HostAuthentication::on(const AuthSuccess1& message) {
  if (message.transaction != transaction_ || message.digest_bytes != checksum::digest_bytes(hash_)) {
    return broken(AuthReason::incorrect_payload, "its success is of another transaction or hash");
  }
  if (expected_.empty()) return {.message = {}, .end = Status()};
  if (!checksum::equal_secrets(message.response, expected_)) {
    return refuse(
        AuthReason::failed,
        Error(ErrorCode::permission, message.response.empty() ? "the target does not prove itself, as it was asked to"
                                                              : "the target's secret is not the one that was expected")
            .with_hint("It may be another than it says. Is the controller's secret the one that it has?"));
  }
  return {.message = encode(AuthSuccess2{.transaction = transaction_}), .end = Status()};
}

}  // namespace infercluster::nvme
