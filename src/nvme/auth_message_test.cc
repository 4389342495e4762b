// SPDX-License-Identifier: Apache-2.0
#include "nvme/auth_message.h"

#include <gtest/gtest.h>

#include <array>

#include "nvme/bytes.h"

namespace infercluster::nvme {
namespace {

std::vector<std::byte> counting(std::size_t length) {
  std::vector<std::byte> bytes(length);
  for (std::size_t i = 0; i < length; ++i) bytes[i] = static_cast<std::byte>(i + 1);
  return bytes;
}

AuthMessage decoded(std::span<const std::byte> bytes) {
  const auto result = decode_auth_message(bytes);
  const auto* fault = std::get_if<AuthFault>(&result);
  EXPECT_EQ(fault, nullptr) << fault->message;
  return std::get<AuthMessage>(result);
}

AuthReason fault_of(std::span<const std::byte> bytes) {
  const auto result = decode_auth_message(bytes);
  const auto* fault = std::get_if<AuthFault>(&result);
  if (fault == nullptr) return AuthReason{};
  EXPECT_FALSE(fault->message.empty());
  return fault->reason;
}

const std::vector<AuthMessage>& every_kind() {
  static const std::vector<AuthMessage> messages{
      AuthNegotiate{.transaction = 0x1234, .secure_channel = 0, .hashes = {1, 2, 3}, .groups = {0, 1, 0xFE}},
      AuthNegotiate{.transaction = 1,
                    .secure_channel = 2,
                    .hashes = std::vector<std::uint8_t>(kAuthListMax, 9),
                    .groups = std::vector<std::uint8_t>(kAuthListMax, 7)},
      AuthChallenge{.transaction = 2,
                    .hash = 2,
                    .group = 0,
                    .sequence = 0x01020304,
                    .challenge = counting(48),
                    .group_value = {}},
      AuthChallenge{.transaction = 3,
                    .hash = 3,
                    .group = 5,
                    .sequence = 1,
                    .challenge = counting(64),
                    .group_value = counting(1024)},
      AuthReply{.transaction = 4, .sequence = 0, .response = counting(32), .challenge = {}, .group_value = {}},
      AuthReply{.transaction = 5,
                .sequence = 7,
                .response = counting(64),
                .challenge = counting(64),
                .group_value = counting(256)},
      AuthSuccess1{.transaction = 6, .digest_bytes = 32, .response = {}},
      AuthSuccess1{.transaction = 7, .digest_bytes = 64, .response = counting(64)},
      AuthSuccess2{.transaction = 8},
      AuthFailure{.from = AuthSide::controller, .transaction = 9, .reason = AuthReason::failed},
      AuthFailure{.from = AuthSide::host, .transaction = 10, .reason = AuthReason::hash_unusable},
  };
  return messages;
}

TEST(AuthMessage, EveryKindIsReadBack) {
  for (const AuthMessage& message : every_kind()) {
    EXPECT_EQ(decoded(encode(message)), message) << name_of(message);
    // A host receives into more room than it needs.
    std::vector<std::byte> roomy = encode(message);
    roomy.resize(kAuthMessageBytesMax);
    EXPECT_EQ(decoded(roomy), message) << name_of(message);
  }
}

TEST(AuthMessage, FieldsLieWhereTheSpecificationPutsThem) {
  const std::vector<std::byte> negotiate = encode(every_kind()[0]);
  ASSERT_EQ(negotiate.size(), 72U);
  EXPECT_EQ(load<std::uint32_t>(negotiate, 0), 0U);
  EXPECT_EQ(load<std::uint16_t>(negotiate, 4), 0x1234);
  EXPECT_EQ(load<std::uint8_t>(negotiate, 7), 1);
  EXPECT_EQ(load<std::uint32_t>(negotiate, 8), 0x03030001U);
  EXPECT_EQ(load<std::uint32_t>(negotiate, 12), 0x030201U);
  EXPECT_EQ(load<std::uint32_t>(negotiate, 42), 0x00FE0100U);

  const std::vector<std::byte> challenge = encode(every_kind()[2]);
  ASSERT_EQ(challenge.size(), 16U + 48U);
  EXPECT_EQ(load<std::uint16_t>(challenge, 0), 0x0101);
  EXPECT_EQ(load<std::uint8_t>(challenge, 6), 48);
  EXPECT_EQ(load<std::uint16_t>(challenge, 8), 0x0002);
  EXPECT_EQ(load<std::uint32_t>(challenge, 12), 0x01020304U);
  EXPECT_EQ(challenge[16], std::byte{1});

  // Without a challenge its place is there all the same.
  EXPECT_EQ(encode(every_kind()[4]).size(), 16U + 2 * 32U);
  const std::vector<std::byte> reply = encode(every_kind()[5]);
  ASSERT_EQ(reply.size(), 16U + 2 * 64U + 256U);
  EXPECT_EQ(load<std::uint16_t>(reply, 0), 0x0201);
  EXPECT_EQ(load<std::uint8_t>(reply, 8), 1);
  EXPECT_EQ(load<std::uint16_t>(reply, 10), 256);
  EXPECT_EQ(load<std::uint32_t>(reply, 12), 7U);

  const std::vector<std::byte> failure = encode(every_kind()[9]);
  ASSERT_EQ(failure.size(), 8U);
  EXPECT_EQ(load<std::uint16_t>(failure, 0), 0xF100);
  EXPECT_EQ(load<std::uint16_t>(failure, 6), 0x0101);
}

TEST(AuthMessage, EveryShorterMessageIsAFault) {
  for (const AuthMessage& message : every_kind()) {
    const std::vector<std::byte> whole = encode(message);
    for (std::size_t length = 0; length < whole.size(); ++length) {
      EXPECT_EQ(fault_of(std::span(whole).first(length)), AuthReason::incorrect_payload)
          << name_of(message) << " " << length;
    }
  }
  EXPECT_EQ(fault_of(std::vector<std::byte>(kAuthMessageBytesMax + 1)), AuthReason::incorrect_payload);
}

TEST(AuthMessage, AnnouncedLengthsAreBounded) {
  struct Case {
    std::size_t message;  // of every_kind()
    std::size_t offset;
    std::uint8_t value;
    AuthReason fault;
  };
  const std::array cases{
      Case{0, 7, 2, AuthReason::incorrect_payload},    // two protocols in the room of one
      Case{0, 7, 255, AuthReason::incorrect_payload},  //
      Case{0, 7, 0, AuthReason::protocol_unusable},    // none
      Case{0, 8, 2, AuthReason::protocol_unusable},    // another
      Case{0, 10, 31, AuthReason::incorrect_payload},  // hashes
      Case{0, 11, 31, AuthReason::incorrect_payload},  // groups
      Case{0, 11, 255, AuthReason::incorrect_payload},
      Case{2, 6, 49, AuthReason::incorrect_payload},  // a challenge of one byte more
      Case{2, 6, 65, AuthReason::incorrect_payload},
      Case{2, 10, 1, AuthReason::incorrect_payload},  // a group's value that is not there
      Case{2, 11, 255, AuthReason::incorrect_payload},
      Case{4, 6, 33, AuthReason::incorrect_payload},
      Case{5, 6, 255, AuthReason::incorrect_payload},
      Case{5, 11, 2, AuthReason::incorrect_payload},
      Case{7, 6, 65, AuthReason::incorrect_payload},
      Case{0, 0, 2, AuthReason::incorrect_message},  // no such type
      Case{0, 1, 1, AuthReason::incorrect_message},  // no such message
      Case{2, 1, 0, AuthReason::incorrect_message},
      Case{2, 1, 5, AuthReason::incorrect_message},
      Case{9, 1, 0xF2, AuthReason::incorrect_message},
  };
  for (const Case& each : cases) {
    std::vector<std::byte> bytes = encode(every_kind()[each.message]);
    bytes[each.offset] = static_cast<std::byte>(each.value);
    EXPECT_EQ(fault_of(bytes), each.fault) << each.message << " " << each.offset << " " << unsigned{each.value};
  }
}

TEST(AuthMessage, DhHmacChapIsFoundBehindOtherProtocols) {
  const std::vector<std::byte> alone = encode(every_kind()[0]);
  std::vector<std::byte> bytes(alone.begin(), alone.begin() + 8);
  bytes[7] = std::byte{2};
  bytes.resize(8 + 64, std::byte{0x44});
  bytes.insert(bytes.end(), alone.begin() + 8, alone.end());
  EXPECT_EQ(decoded(bytes), every_kind()[0]);
}

TEST(AuthMessage, ReasonsHaveNames) {
  for (unsigned reason = 1; reason <= 7; ++reason)
    EXPECT_NE(name_of(static_cast<AuthReason>(reason)), "unknown reason") << reason;
  EXPECT_EQ(name_of(static_cast<AuthReason>(8)), "unknown reason");
}

}  // namespace
}  // namespace infercluster::nvme
