// SPDX-License-Identifier: Apache-2.0
#include "nvme/auth_message.h"

#include <algorithm>

#include "base/assert.h"
#include "nvme/bytes.h"

namespace infercluster::nvme {
namespace {

// AUTH_TYPE and AUTH_ID, the first two bytes.
constexpr std::uint8_t kCommonType = 0x00;
constexpr std::uint8_t kDhchapType = 0x01;
enum class Id : std::uint8_t {
  negotiate = 0x00,
  challenge = 0x01,
  reply = 0x02,
  success1 = 0x03,
  success2 = 0x04,
  failure2 = 0xF0,
  failure1 = 0xF1,
};
constexpr std::size_t kTransactionAt = 4;
constexpr std::size_t kShortBytes = 8;   // of AUTH_Negotiate before its descriptors, and of failures
constexpr std::size_t kFixedBytes = 16;  // of all others, before their values
constexpr std::uint8_t kReasonFailed = 1;

// A protocol descriptor of AUTH_Negotiate.
constexpr std::size_t kDescriptorBytes = 64;
constexpr std::uint8_t kDhchapProtocol = 0x01;
constexpr std::size_t kHashesAt = 4;
constexpr std::size_t kGroupsAt = kHashesAt + kAuthListMax;

std::vector<std::byte> begin(std::uint8_t type, Id id, std::uint16_t transaction, std::size_t length) {
  std::vector<std::byte> bytes(length);
  store<std::uint8_t>(bytes, 0, type);
  store<std::uint8_t>(bytes, 1, static_cast<std::uint8_t>(id));
  store<std::uint16_t>(bytes, kTransactionAt, transaction);
  return bytes;
}

void append(std::vector<std::byte>& bytes, std::span<const std::byte> value) {
  bytes.insert(bytes.end(), value.begin(), value.end());
}

std::vector<std::byte> encode_one(const AuthNegotiate& message) {
  IC_ASSERT(message.hashes.size() <= kAuthListMax && message.groups.size() <= kAuthListMax);
  std::vector<std::byte> bytes = begin(kCommonType, Id::negotiate, message.transaction, kShortBytes + kDescriptorBytes);
  store<std::uint8_t>(bytes, 6, message.secure_channel);
  store<std::uint8_t>(bytes, 7, 1);
  const std::span<std::byte> descriptor = std::span(bytes).subspan(kShortBytes);
  store<std::uint8_t>(descriptor, 0, kDhchapProtocol);
  store<std::uint8_t>(descriptor, 2, static_cast<std::uint8_t>(message.hashes.size()));
  store<std::uint8_t>(descriptor, 3, static_cast<std::uint8_t>(message.groups.size()));
  for (std::size_t i = 0; i < message.hashes.size(); ++i) store(descriptor, kHashesAt + i, message.hashes[i]);
  for (std::size_t i = 0; i < message.groups.size(); ++i) store(descriptor, kGroupsAt + i, message.groups[i]);
  return bytes;
}

std::vector<std::byte> encode_one(const AuthChallenge& message) {
  IC_ASSERT(message.challenge.size() <= kAuthDigestBytesMax);
  std::vector<std::byte> bytes = begin(kDhchapType, Id::challenge, message.transaction, kFixedBytes);
  store<std::uint8_t>(bytes, 6, static_cast<std::uint8_t>(message.challenge.size()));
  store<std::uint8_t>(bytes, 8, message.hash);
  store<std::uint8_t>(bytes, 9, message.group);
  store<std::uint16_t>(bytes, 10, static_cast<std::uint16_t>(message.group_value.size()));
  store<std::uint32_t>(bytes, 12, message.sequence);
  append(bytes, message.challenge);
  append(bytes, message.group_value);
  return bytes;
}

std::vector<std::byte> encode_one(const AuthReply& message) {
  IC_ASSERT(message.response.size() <= kAuthDigestBytesMax &&
            (message.challenge.empty() || message.challenge.size() == message.response.size()));
  std::vector<std::byte> bytes = begin(kDhchapType, Id::reply, message.transaction, kFixedBytes);
  store<std::uint8_t>(bytes, 6, static_cast<std::uint8_t>(message.response.size()));
  store<std::uint8_t>(bytes, 8, message.challenge.empty() ? 0 : 1);
  store<std::uint16_t>(bytes, 10, static_cast<std::uint16_t>(message.group_value.size()));
  store<std::uint32_t>(bytes, 12, message.sequence);
  append(bytes, message.response);
  // The place of a challenge is there, also without one.
  append(bytes, message.challenge);
  if (message.challenge.empty()) bytes.resize(bytes.size() + message.response.size());
  append(bytes, message.group_value);
  return bytes;
}

std::vector<std::byte> encode_one(const AuthSuccess1& message) {
  IC_ASSERT(message.response.empty() || message.response.size() == message.digest_bytes);
  std::vector<std::byte> bytes = begin(kDhchapType, Id::success1, message.transaction, kFixedBytes);
  store<std::uint8_t>(bytes, 6, message.digest_bytes);
  store<std::uint8_t>(bytes, 8, message.response.empty() ? 0 : 1);
  append(bytes, message.response);
  return bytes;
}

std::vector<std::byte> encode_one(const AuthSuccess2& message) {
  return begin(kDhchapType, Id::success2, message.transaction, kFixedBytes);
}

std::vector<std::byte> encode_one(const AuthFailure& message) {
  std::vector<std::byte> bytes = begin(kCommonType, message.from == AuthSide::host ? Id::failure2 : Id::failure1,
                                       message.transaction, kShortBytes);
  store<std::uint8_t>(bytes, 6, kReasonFailed);
  store<std::uint8_t>(bytes, 7, static_cast<std::uint8_t>(message.reason));
  return bytes;
}

using Decoded = std::variant<AuthMessage, AuthFault>;

Decoded incorrect(std::string message) {
  return AuthFault{.reason = AuthReason::incorrect_payload, .message = std::move(message)};
}

// Cuts values off the front of what is there.
class Rest {
 public:
  explicit Rest(std::span<const std::byte> bytes) : bytes_(bytes) {}
  bool take(std::size_t length, std::vector<std::byte>& value) {
    if (length > bytes_.size()) return false;
    value.assign(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(length));
    bytes_ = bytes_.subspan(length);
    return true;
  }

 private:
  std::span<const std::byte> bytes_;
};

std::vector<std::uint8_t> list(std::span<const std::byte> descriptor, std::size_t offset, std::size_t count) {
  std::vector<std::uint8_t> values;
  for (std::size_t i = 0; i < count; ++i) values.push_back(load<std::uint8_t>(descriptor, offset + i));
  return values;
}

Decoded decode_negotiate(std::span<const std::byte> bytes) {
  AuthNegotiate message{.transaction = load<std::uint16_t>(bytes, kTransactionAt),
                        .secure_channel = load<std::uint8_t>(bytes, 6),
                        .hashes = {},
                        .groups = {}};
  const std::size_t descriptors = load<std::uint8_t>(bytes, 7);
  if (descriptors > (bytes.size() - kShortBytes) / kDescriptorBytes) {
    return incorrect("a negotiation of " + std::to_string(descriptors) + " protocols in " +
                     std::to_string(bytes.size()) + " bytes");
  }
  for (std::size_t i = 0; i < descriptors; ++i) {
    const std::span<const std::byte> descriptor = bytes.subspan(kShortBytes + i * kDescriptorBytes, kDescriptorBytes);
    if (load<std::uint8_t>(descriptor, 0) != kDhchapProtocol) continue;
    const std::size_t hashes = load<std::uint8_t>(descriptor, 2);
    const std::size_t groups = load<std::uint8_t>(descriptor, 3);
    if (hashes > kAuthListMax || groups > kAuthListMax) {
      return incorrect("a negotiation with " + std::to_string(hashes) + " hashes and " + std::to_string(groups) +
                       " DH groups");
    }
    message.hashes = list(descriptor, kHashesAt, hashes);
    message.groups = list(descriptor, kGroupsAt, groups);
    return message;
  }
  return AuthFault{.reason = AuthReason::protocol_unusable, .message = "a negotiation without DH-HMAC-CHAP"};
}

Decoded decode_challenge(std::span<const std::byte> bytes) {
  AuthChallenge message{.transaction = load<std::uint16_t>(bytes, kTransactionAt),
                        .hash = load<std::uint8_t>(bytes, 8),
                        .group = load<std::uint8_t>(bytes, 9),
                        .sequence = load<std::uint32_t>(bytes, 12),
                        .challenge = {},
                        .group_value = {}};
  const std::size_t digest = load<std::uint8_t>(bytes, 6);
  Rest rest(bytes.subspan(kFixedBytes));
  if (digest > kAuthDigestBytesMax || !rest.take(digest, message.challenge) ||
      !rest.take(load<std::uint16_t>(bytes, 10), message.group_value)) {
    return incorrect("a challenge that is longer than its message");
  }
  return message;
}

Decoded decode_reply(std::span<const std::byte> bytes) {
  AuthReply message{.transaction = load<std::uint16_t>(bytes, kTransactionAt),
                    .sequence = load<std::uint32_t>(bytes, 12),
                    .response = {},
                    .challenge = {},
                    .group_value = {}};
  const std::size_t digest = load<std::uint8_t>(bytes, 6);
  Rest rest(bytes.subspan(kFixedBytes));
  if (digest > kAuthDigestBytesMax || !rest.take(digest, message.response) || !rest.take(digest, message.challenge) ||
      !rest.take(load<std::uint16_t>(bytes, 10), message.group_value)) {
    return incorrect("a reply that is longer than its message");
  }
  if ((load<std::uint8_t>(bytes, 8) & 1U) == 0) message.challenge.clear();
  return message;
}

Decoded decode_success1(std::span<const std::byte> bytes) {
  AuthSuccess1 message{.transaction = load<std::uint16_t>(bytes, kTransactionAt),
                       .digest_bytes = load<std::uint8_t>(bytes, 6),
                       .response = {}};
  const bool valid = (load<std::uint8_t>(bytes, 8) & 1U) != 0;
  if (message.digest_bytes > kAuthDigestBytesMax ||
      (valid && !Rest(bytes.subspan(kFixedBytes)).take(message.digest_bytes, message.response))) {
    return incorrect("a response that is longer than its message");
  }
  return message;
}

Decoded decode_failure(std::span<const std::byte> bytes, AuthSide from) {
  return AuthFailure{.from = from,
                     .transaction = load<std::uint16_t>(bytes, kTransactionAt),
                     .reason = static_cast<AuthReason>(load<std::uint8_t>(bytes, 7))};
}

}  // namespace

std::string_view name_of(AuthReason reason) {
  switch (reason) {
    case AuthReason::failed:
      return "authentication failed";
    case AuthReason::protocol_unusable:
      return "authentication protocol not usable";
    case AuthReason::secure_channel_mismatch:
      return "secure channel concatenation mismatch";
    case AuthReason::hash_unusable:
      return "no usable hash";
    case AuthReason::group_unusable:
      return "no usable DH group";
    case AuthReason::incorrect_payload:
      return "incorrect payload";
    case AuthReason::incorrect_message:
      return "incorrect protocol message";
  }
  return "unknown reason";
}

std::string_view name_of(const AuthMessage& message) {
  struct Name {
    std::string_view operator()(const AuthNegotiate&) const { return "AUTH_Negotiate"; }
    std::string_view operator()(const AuthChallenge&) const { return "DH-HMAC-CHAP_Challenge"; }
    std::string_view operator()(const AuthReply&) const { return "DH-HMAC-CHAP_Reply"; }
    std::string_view operator()(const AuthSuccess1&) const { return "DH-HMAC-CHAP_Success1"; }
    std::string_view operator()(const AuthSuccess2&) const { return "DH-HMAC-CHAP_Success2"; }
    std::string_view operator()(const AuthFailure& failure) const {
      return failure.from == AuthSide::host ? "AUTH_Failure2" : "AUTH_Failure1";
    }
  };
  return std::visit(Name{}, message);
}

std::vector<std::byte> encode(const AuthMessage& message) {
  std::vector<std::byte> bytes = std::visit([](const auto& one) { return encode_one(one); }, message);
  IC_ASSERT(bytes.size() <= kAuthMessageBytesMax);
  return bytes;
}

std::variant<AuthMessage, AuthFault> decode_auth_message(std::span<const std::byte> bytes) {
  if (bytes.size() < kShortBytes || bytes.size() > kAuthMessageBytesMax)
    return incorrect("a message of " + std::to_string(bytes.size()) + " bytes");
  const auto type = load<std::uint8_t>(bytes, 0);
  const auto id = static_cast<Id>(load<std::uint8_t>(bytes, 1));
  if (type == kCommonType) {
    if (id == Id::negotiate) return decode_negotiate(bytes);
    if (id == Id::failure1) return decode_failure(bytes, AuthSide::controller);
    if (id == Id::failure2) return decode_failure(bytes, AuthSide::host);
  } else if (type == kDhchapType && id >= Id::challenge && id <= Id::success2) {
    if (bytes.size() < kFixedBytes) return incorrect("a message of " + std::to_string(bytes.size()) + " bytes");
    if (id == Id::challenge) return decode_challenge(bytes);
    if (id == Id::reply) return decode_reply(bytes);
    if (id == Id::success1) return decode_success1(bytes);
    return AuthSuccess2{.transaction = load<std::uint16_t>(bytes, kTransactionAt)};
  }
  return AuthFault{.reason = AuthReason::incorrect_message,
                   .message = "a message of type " + std::to_string(type) + " and identifier " +
                              std::to_string(static_cast<unsigned>(id))};
}

}  // namespace infercluster::nvme
