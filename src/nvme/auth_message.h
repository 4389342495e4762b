// SPDX-License-Identifier: Apache-2.0
// The messages of DH-HMAC-CHAP, which Authentication Send and Receive carry: NVM Express Base Specification 2.0,
// section 8.13.5. Bytes in, values out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace infercluster::nvme {

// No message is longer: what Linux makes room for, and enough for the largest DH group.
inline constexpr std::size_t kAuthMessageBytesMax = 4096;
inline constexpr std::size_t kAuthListMax = 30;         // hashes, and DH groups, that a negotiation may name
inline constexpr std::size_t kAuthDigestBytesMax = 64;  // of challenges and responses
inline constexpr std::uint8_t kAuthGroupNull = 0x00;    // without Diffie-Hellman: what is done here
inline constexpr std::uint8_t kAuthGroupVendor = 0xFE;  // the last of those that are left to vendors: nobody has it

// AUTH_Negotiate, from the host: what it can do. `hashes` are 1 to 3 for SHA-256, 384, 512.
struct AuthNegotiate {
  std::uint16_t transaction = 0;
  std::uint8_t secure_channel = 0;  // SC_C: 0 for none
  std::vector<std::uint8_t> hashes;
  std::vector<std::uint8_t> groups;
  bool operator==(const AuthNegotiate&) const = default;
};
// DH-HMAC-CHAP_Challenge, from the controller: what it chose, and what the host is to answer.
struct AuthChallenge {
  std::uint16_t transaction = 0;
  std::uint8_t hash = 0;
  std::uint8_t group = kAuthGroupNull;
  std::uint32_t sequence = 0;
  std::vector<std::byte> challenge;
  std::vector<std::byte> group_value;
  bool operator==(const AuthChallenge&) const = default;
};
// DH-HMAC-CHAP_Reply, from the host: its response, and a challenge of its own, or none.
struct AuthReply {
  std::uint16_t transaction = 0;
  std::uint32_t sequence = 0;  // 0: the controller need not prove itself
  std::vector<std::byte> response;
  std::vector<std::byte> challenge;  // as long as the response, or empty
  std::vector<std::byte> group_value;
  bool operator==(const AuthReply&) const = default;
};
// DH-HMAC-CHAP_Success1, from the controller: its response to the host's challenge, or none.
struct AuthSuccess1 {
  std::uint16_t transaction = 0;
  std::uint8_t digest_bytes = 0;
  std::vector<std::byte> response;  // of digest_bytes, or empty
  bool operator==(const AuthSuccess1&) const = default;
};
// DH-HMAC-CHAP_Success2, from the host: the controller's response was right.
struct AuthSuccess2 {
  std::uint16_t transaction = 0;
  bool operator==(const AuthSuccess2&) const = default;
};

enum class AuthReason : std::uint8_t {  // the explanations of a failure
  failed = 1,
  protocol_unusable = 2,
  secure_channel_mismatch = 3,
  hash_unusable = 4,
  group_unusable = 5,
  incorrect_payload = 6,
  incorrect_message = 7,
};
std::string_view name_of(AuthReason reason);

enum class AuthSide : std::uint8_t { controller, host };
// AUTH_Failure1, from the controller, and AUTH_Failure2, from the host.
struct AuthFailure {
  AuthSide from = AuthSide::controller;
  std::uint16_t transaction = 0;
  AuthReason reason = AuthReason::failed;  // may be none of those that are named
  bool operator==(const AuthFailure&) const = default;
};

using AuthMessage = std::variant<AuthNegotiate, AuthChallenge, AuthReply, AuthSuccess1, AuthSuccess2, AuthFailure>;
std::string_view name_of(const AuthMessage& message);

// Lists and values within their limits are the caller's duty.
std::vector<std::byte> encode(const AuthMessage& message);

// What bytes are not a message, as the peer and as a person is told.
struct AuthFault {
  AuthReason reason = AuthReason::incorrect_payload;
  std::string message;
};
// Bytes behind the message are left aside: a host receives into more room than it needs.
std::variant<AuthMessage, AuthFault> decode_auth_message(std::span<const std::byte> bytes);

}  // namespace infercluster::nvme
