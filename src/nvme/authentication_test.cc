// SPDX-License-Identifier: Apache-2.0
#include "nvme/authentication.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "nvme/auth_test_helpers.h"

namespace infercluster::nvme {
namespace {

const AuthParties kParties{.host_nqn = "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
                           .subsystem_nqn = "nqn.2026-01.io.test:pool"};

// By Python: hmac.new(transformed key, challenge + struct.pack("<IHB", 0x01020304, 0x0506, 0) + b"HostHost" + host_nqn
// + b"\0" + subsystem_nqn, hash), and with b"Controller" and the names the other way round; the challenge is 0, 1, 2
// ...
TEST(Responses, KnownAnswers) {
  struct Case {
    checksum::Sha2 hash;
    const char* host;
    const char* controller;
    const char* host_response;
    const char* controller_response;
  };
  const std::array cases{
      Case{checksum::Sha2::sha256, kHostSecret01, kControllerSecret01,
           "a03c4ddf72abd9151a87b34b0ac9f4172fc7555b7497fa0b7fd88fbc97947072",
           "9485b5fcd1359fbfa706e80b82622409ffc8e92c64bbf80377e390736fd01324"},
      Case{checksum::Sha2::sha384, kHostSecret02, kControllerSecret02,
           "9ab4e683a555c5930432bd02231ce2138b1377c86f84f4fc67202c5f462828ae7d02a24f5fdee29b8045e6beeb6c4385",
           "f502c00c7203150a9fc4df32d0619782534c7322d3984ae4d8cc59a528310e192a5427cdc300df31e14105f5ac3eb109"},
      Case{checksum::Sha2::sha512, kHostSecret03, kControllerSecret03,
           "1d5e825049a748b5bd72bf244680be36765f92d286e9049245109c090aeb8aa081a68f467945d3ec4f5bf14de6e7f3269d025a0d34"
           "c7b3c502fca115016ecd07",
           "e5b4d281e2b584f6afed20abe6e748cf905a34d608c4de86e2ea51446106aecdaeabab6c3145b87ad80844a2c60c0f71243d7f4060"
           "390110ca95dc6cb8195b1f"},
  };
  for (const Case& each : cases) {
    std::vector<std::byte> challenge(checksum::digest_bytes(each.hash));
    for (std::size_t i = 0; i < challenge.size(); ++i) challenge[i] = static_cast<std::byte>(i);
    const AuthQuestion question{
        .hash = each.hash, .challenge = challenge, .sequence = 0x01020304, .transaction = 0x0506};
    EXPECT_EQ(hex(host_response(secret(each.host), kParties, question)), each.host_response);
    EXPECT_EQ(hex(controller_response(secret(each.controller), kParties, question)), each.controller_response);
  }
}

Credentials credentials(const char* host, const char* controller = nullptr) {
  Credentials made{.host = secret(host)};
  if (controller != nullptr) made.controller = secret(controller);
  return made;
}

// Both ends, with what goes between them.
struct Exchange {
  Exchange(const Credentials& target_has, const Credentials& host_has, const AuthParties& host_parties = kParties)
      : target_credentials(target_has),
        host_credentials(host_has),
        controller(target_credentials, kParties, Counting()),
        host(host_credentials, host_parties, 77, Counting()) {}

  // To its end; what the host says of it.
  Status run() {
    HostAuthentication::Step step = host.begin();
    for (int i = 0; i < 4; ++i) {
      if (!step.message.empty()) {
        sent.push_back(step.message);
        controller.take(step.message);
      }
      if (step.end) return *std::move(step.end);
      EXPECT_TRUE(controller.due());
      received.push_back(controller.give());
      step = host.take(received.back());
    }
    ADD_FAILURE() << "the exchange has no end";
    return {};
  }

  Credentials target_credentials;
  Credentials host_credentials;
  ControllerAuthentication controller;
  HostAuthentication host;
  std::vector<std::vector<std::byte>> sent;
  std::vector<std::vector<std::byte>> received;
};

AuthReason reason_of(std::span<const std::byte> message) {
  return std::get<AuthFailure>(std::get<AuthMessage>(decode_auth_message(message))).reason;
}

TEST(Authentication, SucceedsWithEachHashBothWays) {
  struct Case {
    const char* host;
    const char* controller;
    std::uint8_t hash;
  };
  for (const Case& each :
       {Case{kHostSecret00, nullptr, 1}, Case{kHostSecret01, nullptr, 1}, Case{kHostSecret02, nullptr, 2},
        Case{kHostSecret03, nullptr, 3}, Case{kHostSecret01, kControllerSecret03, 1},
        Case{kHostSecret02, kControllerSecret02, 2}, Case{kHostSecret03, kControllerSecret01, 3}}) {
    const Credentials both = credentials(each.host, each.controller);
    Exchange exchange(both, both);
    EXPECT_FALSE(exchange.controller.authenticated());
    const Status status = exchange.run();
    EXPECT_TRUE(status.ok()) << status.error().to_string();
    EXPECT_TRUE(exchange.controller.authenticated());
    EXPECT_FALSE(exchange.controller.due());
    EXPECT_FALSE(exchange.controller.failed());
    const auto challenge = std::get<AuthChallenge>(std::get<AuthMessage>(decode_auth_message(exchange.received[0])));
    EXPECT_EQ(challenge.hash, each.hash);
    EXPECT_NE(challenge.sequence, 0U);
    EXPECT_EQ(exchange.sent.size(), each.controller == nullptr ? 2U : 3U);
  }
}

TEST(Authentication, AWrongSecretIsRefusedAndThePeerLearnsNothing) {
  Exchange exchange(credentials(kHostSecret02), credentials(kHostSecret01));
  const Status status = exchange.run();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::permission);
  EXPECT_FALSE(status.error().hint().empty());
  EXPECT_TRUE(exchange.controller.failed());
  EXPECT_FALSE(exchange.controller.authenticated());
  EXPECT_NE(exchange.controller.fault().find("secret"), std::string::npos);
  EXPECT_EQ(reason_of(exchange.received.back()), AuthReason::failed);
}

// The same key in another form is another key, and one that is bound to a name holds for no other.
TEST(Authentication, TheNameAndTheFormOfTheSecretCount) {
  EXPECT_FALSE(Exchange(credentials(kHostSecret01), credentials(kHostSecret00)).run().ok());
  AuthParties other = kParties;
  other.host_nqn += "x";
  EXPECT_FALSE(Exchange(credentials(kHostSecret00), credentials(kHostSecret00), other).run().ok());
  other = kParties;
  other.subsystem_nqn += "x";
  EXPECT_FALSE(Exchange(credentials(kHostSecret00), credentials(kHostSecret00), other).run().ok());
}

TEST(Authentication, AControllerThatCannotProveItselfIsNotTakenForIt) {
  // It has no secret: the same answer as to a wrong one of the host.
  Exchange none(credentials(kHostSecret01), credentials(kHostSecret01, kControllerSecret01));
  EXPECT_EQ(none.run().error().code(), ErrorCode::permission);
  EXPECT_EQ(reason_of(none.received.back()), AuthReason::failed);
  EXPECT_FALSE(none.controller.authenticated());
  // It has another: the host tells it.
  Exchange wrong(credentials(kHostSecret01, kControllerSecret02), credentials(kHostSecret01, kControllerSecret01));
  const Status status = wrong.run();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::permission);
  EXPECT_TRUE(wrong.controller.failed());
  EXPECT_FALSE(wrong.controller.authenticated());
  EXPECT_EQ(reason_of(wrong.sent.back()), AuthReason::failed);
  // It says success without the proof that was asked for.
  Exchange silent(credentials(kHostSecret01), credentials(kHostSecret01, kControllerSecret01));
  silent.controller.take(silent.host.begin().message);
  ASSERT_EQ(silent.host.take(silent.controller.give()).end, std::nullopt);
  const HostAuthentication::Step step =
      silent.host.take(encode(AuthSuccess1{.transaction = 77, .digest_bytes = 32, .response = {}}));
  ASSERT_TRUE(step.end && !step.end->ok());
  EXPECT_EQ(step.end->error().code(), ErrorCode::permission);
}

TEST(Authentication, AHostThatDoesNotAskForProofGetsNone) {
  Exchange exchange(credentials(kHostSecret01, kControllerSecret01), credentials(kHostSecret01));
  EXPECT_TRUE(exchange.run().ok());
  EXPECT_TRUE(exchange.controller.authenticated());
}

TEST(Authentication, ReflectedChallengesAreRefused) {
  const Credentials target = credentials(kHostSecret01, kControllerSecret01);
  ControllerAuthentication controller(target, kParties, Counting());
  controller.take(encode(AuthNegotiate{.transaction = 1, .secure_channel = 0, .hashes = {1}, .groups = {0}}));
  const auto challenge = std::get<AuthChallenge>(std::get<AuthMessage>(decode_auth_message(controller.give())));
  const std::vector<std::byte> right = host_response(target.host, kParties,
                                                     {.hash = checksum::Sha2::sha256,
                                                      .challenge = challenge.challenge,
                                                      .sequence = challenge.sequence,
                                                      .transaction = 1});
  controller.take(encode(AuthReply{
      .transaction = 1, .sequence = 5, .response = right, .challenge = challenge.challenge, .group_value = {}}));
  EXPECT_EQ(reason_of(controller.give()), AuthReason::failed);
  EXPECT_FALSE(controller.authenticated());
}

class ControllerEnd : public ::testing::Test {
 protected:
  static AuthNegotiate negotiate() {
    return {.transaction = 9, .secure_channel = 0, .hashes = {1, 2, 3}, .groups = {0}};
  }
  AuthReason refused(const AuthMessage& message) {
    controller_.take(encode(message));
    if (!controller_.due()) return AuthReason{};
    const AuthReason reason = reason_of(controller_.give());
    EXPECT_TRUE(controller_.failed());
    EXPECT_FALSE(controller_.authenticated());
    EXPECT_FALSE(controller_.fault().empty());
    return reason;
  }
  AuthReply right_reply() { return right_reply_to(controller_); }
  AuthReply right_reply_to(ControllerAuthentication& controller) const {
    controller.take(encode(negotiate()));
    const auto challenge = std::get<AuthChallenge>(std::get<AuthMessage>(decode_auth_message(controller.give())));
    return {.transaction = 9,
            .sequence = 0,
            .response = host_response(credentials_.host, kParties,
                                      {.hash = checksum::Sha2::sha256,
                                       .challenge = challenge.challenge,
                                       .sequence = challenge.sequence,
                                       .transaction = 9}),
            .challenge = {},
            .group_value = {}};
  }

  Credentials credentials_ = credentials(kHostSecret01);
  ControllerAuthentication controller_{credentials_, kParties, Counting()};
};

TEST_F(ControllerEnd, TakesTheStrongestHashWhereTheOneOfTheKeyIsNotOffered) {
  AuthNegotiate message = negotiate();
  message.hashes = {9, 2, 3};
  controller_.take(encode(message));
  EXPECT_EQ(std::get<AuthChallenge>(std::get<AuthMessage>(decode_auth_message(controller_.give()))).hash, 3);
}

TEST_F(ControllerEnd, RefusesWhatItCannotDo) {
  AuthNegotiate message = negotiate();
  message.hashes = {4, 0};
  EXPECT_EQ(refused(message), AuthReason::hash_unusable);
}
TEST_F(ControllerEnd, RefusesHostsThatInsistOnAGroup) {
  AuthNegotiate message = negotiate();
  message.groups = {1, 2};
  EXPECT_EQ(refused(message), AuthReason::group_unusable);
}
TEST_F(ControllerEnd, RefusesSecureChannels) {
  AuthNegotiate message = negotiate();
  message.secure_channel = 1;
  EXPECT_EQ(refused(message), AuthReason::secure_channel_mismatch);
}

TEST_F(ControllerEnd, RefusesMessagesOutOfTurn) {
  for (const AuthMessage& message :
       {AuthMessage(AuthReply{}), AuthMessage(AuthSuccess2{}), AuthMessage(AuthChallenge{}),
        AuthMessage(AuthSuccess1{}), AuthMessage(AuthFailure{})}) {
    ControllerAuthentication fresh(credentials_, kParties, Counting());
    fresh.take(encode(message));
    ASSERT_TRUE(fresh.due()) << name_of(message);
    EXPECT_EQ(reason_of(fresh.give()), AuthReason::incorrect_message) << name_of(message);
    EXPECT_TRUE(fresh.failed());
  }
}
// A host cannot skip the reply.
TEST_F(ControllerEnd, RefusesSuccess2InsteadOfAReply) {
  (void)right_reply();
  EXPECT_EQ(refused(AuthSuccess2{.transaction = 9}), AuthReason::incorrect_message);
}
TEST_F(ControllerEnd, RefusesAReplyOfAnotherTransaction) {
  AuthReply reply = right_reply();
  reply.transaction = 10;
  EXPECT_EQ(refused(reply), AuthReason::incorrect_payload);
}
TEST_F(ControllerEnd, RefusesAShorterResponse) {
  AuthReply reply = right_reply();
  reply.response.pop_back();
  EXPECT_EQ(refused(reply), AuthReason::incorrect_payload);
}
TEST_F(ControllerEnd, RefusesAnEmptyResponse) {
  AuthReply reply = right_reply();
  reply.response.clear();
  EXPECT_EQ(refused(reply), AuthReason::incorrect_payload);
}
TEST_F(ControllerEnd, RefusesEveryOtherResponse) {
  for (std::size_t i = 0; i < 32; ++i) {
    ControllerAuthentication fresh(credentials_, kParties, Counting());
    AuthReply reply = right_reply_to(fresh);
    reply.response[i] ^= std::byte{1};
    fresh.take(encode(reply));
    ASSERT_TRUE(fresh.due());
    EXPECT_EQ(reason_of(fresh.give()), AuthReason::failed) << i;
    EXPECT_FALSE(fresh.authenticated());
  }
}
TEST_F(ControllerEnd, RefusesGarbage) {
  controller_.take(std::vector<std::byte>(100, std::byte{0xEE}));
  EXPECT_EQ(reason_of(controller_.give()), AuthReason::incorrect_message);
  // What comes afterwards changes nothing.
  controller_.take(encode(negotiate()));
  EXPECT_FALSE(controller_.due());
  EXPECT_TRUE(controller_.failed());
}

TEST_F(ControllerEnd, ADoneQueueMayAuthenticateAgainAndLosesItByFailing) {
  controller_.take(encode(right_reply()));
  EXPECT_FALSE(controller_.authenticated());
  (void)controller_.give();
  ASSERT_TRUE(controller_.authenticated());
  const AuthReply again = right_reply();
  EXPECT_TRUE(controller_.authenticated());
  controller_.take(encode(again));
  (void)controller_.give();
  EXPECT_TRUE(controller_.authenticated());
  AuthReply wrong = right_reply();
  wrong.response[0] ^= std::byte{1};
  EXPECT_EQ(refused(wrong), AuthReason::failed);
}

// Each challenge is another, so that no response can be played back.
TEST_F(ControllerEnd, AnOldReplyIsWorthless) {
  const AuthReply old = right_reply();
  (void)right_reply();
  EXPECT_EQ(refused(old), AuthReason::failed);
}

TEST_F(ControllerEnd, TheHostsFailureEndsItWithoutAnAnswer) {
  (void)right_reply();
  controller_.take(encode(AuthFailure{.from = AuthSide::host, .transaction = 9, .reason = AuthReason::failed}));
  EXPECT_FALSE(controller_.due());
  EXPECT_TRUE(controller_.failed());
}

TEST(HostEnd, RefusesWhatAControllerMustNotSend) {
  const Credentials mine = credentials(kHostSecret01);
  const std::vector<std::byte> challenge(32);
  struct Case {
    AuthMessage message;
    ErrorCode code;
    AuthReason reason;
  };
  const std::array cases{
      Case{AuthNegotiate{.transaction = 4, .secure_channel = 0, .hashes = {}, .groups = {}}, ErrorCode::corrupt,
           AuthReason::incorrect_message},
      Case{AuthSuccess1{.transaction = 4, .digest_bytes = 32, .response = {}}, ErrorCode::corrupt,
           AuthReason::incorrect_message},
      Case{AuthFailure{.from = AuthSide::host, .transaction = 4, .reason = AuthReason::failed}, ErrorCode::corrupt,
           AuthReason::incorrect_message},
      Case{AuthChallenge{.transaction = 5, .hash = 1, .sequence = 1, .challenge = challenge, .group_value = {}},
           ErrorCode::corrupt, AuthReason::incorrect_payload},
      Case{AuthChallenge{.transaction = 4, .hash = 0, .sequence = 1, .challenge = challenge, .group_value = {}},
           ErrorCode::corrupt, AuthReason::hash_unusable},
      Case{AuthChallenge{.transaction = 4, .hash = 2, .sequence = 1, .challenge = challenge, .group_value = {}},
           ErrorCode::corrupt, AuthReason::incorrect_payload},
      Case{
          AuthChallenge{
              .transaction = 4, .hash = 1, .group = 1, .sequence = 1, .challenge = challenge, .group_value = challenge},
          ErrorCode::unsupported, AuthReason::group_unusable},
      Case{AuthChallenge{.transaction = 4, .hash = 1, .sequence = 1, .challenge = challenge, .group_value = challenge},
           ErrorCode::corrupt, AuthReason::incorrect_payload},
  };
  for (const Case& each : cases) {
    HostAuthentication host(mine, kParties, 4, Counting());
    (void)host.begin();
    const HostAuthentication::Step step = host.take(encode(each.message));
    ASSERT_TRUE(step.end && !step.end->ok()) << name_of(each.message);
    EXPECT_EQ(step.end->error().code(), each.code) << step.end->error().to_string();
    EXPECT_EQ(reason_of(step.message), each.reason);
  }
  HostAuthentication host(mine, kParties, 4, Counting());
  (void)host.begin();
  const HostAuthentication::Step refused = host.take(
      encode(AuthFailure{.from = AuthSide::controller, .transaction = 4, .reason = AuthReason::hash_unusable}));
  ASSERT_TRUE(refused.end && !refused.end->ok());
  EXPECT_EQ(refused.end->error().code(), ErrorCode::permission);
  EXPECT_TRUE(refused.message.empty());
}

}  // namespace
}  // namespace infercluster::nvme
