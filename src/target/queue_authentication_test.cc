// SPDX-License-Identifier: Apache-2.0
#include "target/queue_authentication.h"

#include <gtest/gtest.h>

#include <array>

#include "nvme/auth_test_helpers.h"
#include "target/host_test_helpers.h"
#include "target/session.h"
#include "testing/manual_clock.h"

namespace infercluster::target {
namespace {

constexpr std::uint32_t kRoom = 4096;

nvme::Command send_command(const Bytes& message) {
  const auto length = static_cast<std::uint32_t>(message.size());
  nvme::Command command = nvme::encode_authentication(nvme::FabricsType::authentication_send, {.length = length});
  command.sgl = {.address = 0, .length = length, .identifier = nvme::kSglInCapsule};
  return command;
}
nvme::Command receive_command(std::uint32_t length = kRoom) {
  nvme::Command command = nvme::encode_authentication(nvme::FabricsType::authentication_receive, {.length = length});
  command.sgl = {.address = 0, .length = length, .identifier = nvme::kSglTransport};
  return command;
}
Bytes negotiate() {
  return nvme::encode(nvme::AuthNegotiate{.transaction = 3, .secure_channel = 0, .hashes = {1, 2, 3}, .groups = {0}});
}

TEST(QueueAuthentication, CommandsThatDoNotFitAreRefusedAndChangeNothing) {
  const nvme::Credentials credentials{.host = nvme::secret(nvme::kHostSecret01)};
  testing::ManualClock clock;
  QueueAuthentication queue(credentials, {.host_nqn = kTestHostNqn, .subsystem_nqn = kTestNqn}, clock.now());
  EXPECT_EQ(queue.answer(receive_command(), {}).status, nvme::kCommandSequenceError);
  const Bytes message = negotiate();
  struct Case {
    nvme::Command command;
    Bytes data;
    nvme::CommandStatus status;
  };
  std::vector<Case> cases;
  const auto add = [&](nvme::Command command, const Bytes& data, nvme::CommandStatus status, const auto& change) {
    change(command);
    cases.push_back({.command = command, .data = data, .status = status});
  };
  const auto nothing = [](nvme::Command&) {};
  add(send_command(message), message, nvme::kInvalidField, [](nvme::Command& c) { c.dwords[0] ^= 1U << 24; });
  add(send_command(message), message, nvme::kInvalidField, [](nvme::Command& c) { c.dwords[0] ^= 1U << 8; });
  add(send_command(message), message, nvme::kInvalidField, [](nvme::Command& c) { c.dwords[0] ^= 1U << 16; });
  add(send_command(message), message, nvme::kDataSglLengthInvalid, [](nvme::Command& c) { c.dwords[1] = 0xFFFFFFFF; });
  add(send_command(message), message, nvme::kSglTypeInvalid, [](nvme::Command& c) { c.sgl.address = 4; });
  add(send_command(message), {}, nvme::kSglTypeInvalid,
      [](nvme::Command& c) { c.sgl.identifier = nvme::kSglTransport; });
  add(send_command(message), Bytes(8), nvme::kDataSglLengthInvalid, nothing);
  add(send_command({}), {}, nvme::kInvalidField, nothing);
  add(send_command(Bytes(4097)), Bytes(4097), nvme::kInvalidField, nothing);
  add(receive_command(), {}, nvme::kSglTypeInvalid, [](nvme::Command& c) { c.sgl.identifier = nvme::kSglInCapsule; });
  add(receive_command(), {}, nvme::kDataSglLengthInvalid, [](nvme::Command& c) { c.sgl.length = 100; });
  add(receive_command(0), {}, nvme::kInvalidField, nothing);
  add(receive_command(79), {}, nvme::kInvalidField, nothing);
  add(receive_command(0xFFFFFFFC), {}, nvme::kInvalidField, nothing);
  for (int turn = 0; turn < 2; ++turn) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const nvme::Reply reply = queue.answer(cases[i].command, cases[i].data);
      EXPECT_EQ(reply.status, cases[i].status) << i << " " << reply.status.to_string();
      EXPECT_TRUE(reply.data.empty()) << i;
    }
    if (turn == 0) {
      EXPECT_TRUE(queue.answer(send_command(message), message).status.ok());
    }
  }
  // The challenge still waits to be fetched.
  const nvme::Reply challenge = queue.answer(receive_command(80), {});
  EXPECT_TRUE(challenge.status.ok());
  EXPECT_EQ(challenge.data.size(), 80U);
  EXPECT_FALSE(queue.authenticated());
  EXPECT_FALSE(queue.failed());
}

// A session whose host has to prove itself.
class SessionAuthentication : public ::testing::Test {
 protected:
  static Admission admission() {
    Admission made;
    made.secrets.emplace(kTestHostNqn, nvme::Credentials{.host = nvme::secret(nvme::kHostSecret02)});
    return made;
  }
  bool send(const Bytes& bytes) {
    const bool on = session_.receive(bytes);
    for (; !session_.outgoing().empty(); session_.outgoing().pop_front()) {
      const Outgoing& pdu = session_.outgoing().front();
      EXPECT_TRUE(host_.receive(std::span(pdu.prelude).first(pdu.prelude_bytes)));
      EXPECT_TRUE(host_.receive(pdu.data));
    }
    return on;
  }
  nvme::Completion next() {
    if (host_.completions.empty()) {
      ADD_FAILURE() << "no completion";
      return {};
    }
    const nvme::Completion completion = host_.completions.front();
    host_.completions.pop_front();
    return completion;
  }
  void connect() {
    ASSERT_TRUE(send(initialize_bytes()));
    ASSERT_TRUE(send(connect_bytes({})));
    const nvme::Completion completion = next();
    ASSERT_TRUE(completion.status.ok());
    EXPECT_TRUE(nvme::decode_connected(completion.result).authentication_required);
  }
  bool say(const Bytes& message) {
    const bool on =
        send(wire({.type = nvme::PduType::command, .flags = 0, .body = send_command(message)}, {}, message));
    EXPECT_TRUE(next().status.ok());
    return on;
  }
  bool fetch() {
    host_.data.clear();
    return send(command_bytes(receive_command(), 5, kRoom));
  }
  // As a host with `secret` does. False: the target ended the connection.
  bool authenticate(const char* secret) {
    const nvme::Credentials credentials{.host = nvme::secret(secret)};
    nvme::HostAuthentication host(credentials, {.host_nqn = kTestHostNqn, .subsystem_nqn = kTestNqn}, 8,
                                  nvme::Counting());
    nvme::HostAuthentication::Step step = host.begin();
    for (;;) {
      if (!step.message.empty() && !say(step.message)) return false;
      if (step.end) return step.end->ok();
      const bool on = fetch();
      EXPECT_TRUE(next().status.ok());
      step = host.take(host_.data[5]);
      if (!on) return false;
    }
  }
  nvme::CommandStatus status_of(const nvme::Command& command, std::uint32_t length = 0) {
    EXPECT_TRUE(send(command_bytes(command, 7, length)));
    return next().status;
  }
  static nvme::Command enable() {
    return nvme::encode_property_set({.offset = nvme::kPropertyConfiguration, .bytes = 4, .value = 0x460001});
  }

  nvme::Subsystem subsystem_{.nqn = kTestNqn, .uuid = {}, .serial = "1", .firmware = "1", .blocks = 1ULL << 50};
  testing::ManualClock clock_;
  Controllers controllers_{subsystem_, admission(), {}};
  AddressSpace space_{kEdgeBlocks};
  HostReader host_;
  Session session_{{.controllers = &controllers_, .space = &space_, .clock = &clock_, .loopback = true, .log = {}}};
};

TEST_F(SessionAuthentication, NothingElseIsTakenBeforeIt) {
  connect();
  const std::array before{nvme::encode_property_get({.offset = nvme::kPropertyCapabilities, .bytes = 8, .value = 0}),
                          enable(),
                          nvme::encode_identify(nvme::kCnsController, 0),
                          nvme::Command{.opcode = nvme::kKeepAlive},
                          nvme::Command{.opcode = 0xC0},
                          nvme::encode_connect({.format = 0, .queue_id = 0, .queue_size = 31})};
  for (const nvme::Command& command : before) EXPECT_EQ(status_of(command), nvme::kAuthenticationRequired);
  ASSERT_TRUE(say(negotiate()));
  for (const nvme::Command& command : before) EXPECT_EQ(status_of(command), nvme::kAuthenticationRequired);
  EXPECT_TRUE(authenticate(nvme::kHostSecret02));
  EXPECT_TRUE(status_of(enable()).ok());
  EXPECT_TRUE(status_of(nvme::encode_identify(nvme::kCnsController, 0), 4096).ok());
  EXPECT_EQ(session_.counters().refused, 0U);
}

TEST_F(SessionAuthentication, AWrongSecretEndsTheConnectionAndIsCounted) {
  connect();
  EXPECT_FALSE(authenticate(nvme::kHostSecret01));
  EXPECT_EQ(session_.counters().refused, 1U);
  EXPECT_NE(session_.fault().find(kTestHostNqn), std::string::npos);
  EXPECT_EQ(session_.fault().find("DHHC"), std::string::npos);
}

TEST_F(SessionAuthentication, HasATimeLimit) {
  connect();
  EXPECT_FALSE(session_.authentication_overdue());
  clock_.advance(Limits().authentication_timeout);
  EXPECT_FALSE(session_.authentication_overdue());
  clock_.advance(std::chrono::milliseconds(1));
  // What does not lead to an end is no progress.
  ASSERT_TRUE(say(negotiate()));
  EXPECT_TRUE(session_.authentication_overdue());
  const std::optional<std::string> why = session_.refuse_unauthenticated();
  ASSERT_TRUE(why.has_value());
  EXPECT_NE(why->find(kTestHostNqn), std::string::npos);
  EXPECT_EQ(session_.counters().refused, 1U);
}

TEST_F(SessionAuthentication, WhoIsAuthenticatedHasAllTheTime) {
  connect();
  ASSERT_TRUE(authenticate(nvme::kHostSecret02));
  clock_.advance(std::chrono::hours(1));
  EXPECT_FALSE(session_.authentication_overdue());
  EXPECT_FALSE(session_.refuse_unauthenticated().has_value());
  // And may do it again, while the queue serves.
  ASSERT_TRUE(say(negotiate()));
  EXPECT_TRUE(status_of(enable()).ok());
  ASSERT_TRUE(authenticate(nvme::kHostSecret02));
  EXPECT_FALSE(authenticate(nvme::kHostSecret01));
  EXPECT_EQ(session_.counters().refused, 1U);
}

// Each queue is a connection, and proves its host by itself.
TEST_F(SessionAuthentication, IOQueuesHaveToAsWell) {
  connect();
  ASSERT_TRUE(authenticate(nvme::kHostSecret02));
  ASSERT_TRUE(status_of(enable()).ok());
  Session io({.controllers = &controllers_, .space = &space_, .clock = &clock_, .loopback = true, .log = {}});
  HostReader host;
  const auto exchange = [&](const Bytes& bytes) {
    EXPECT_TRUE(io.receive(bytes));
    for (; !io.outgoing().empty(); io.outgoing().pop_front()) {
      EXPECT_TRUE(host.receive(std::span(io.outgoing().front().prelude).first(io.outgoing().front().prelude_bytes)));
      EXPECT_TRUE(host.receive(io.outgoing().front().data));
    }
  };
  exchange(initialize_bytes());
  ConnectTo to;
  to.connect.queue_id = 1;
  to.controller_id = 1;
  exchange(connect_bytes(to));
  ASSERT_EQ(host.completions.size(), 1U);
  EXPECT_TRUE(nvme::decode_connected(host.completions[0].result).authentication_required);
  exchange(command_bytes(nvme::encode_read({.first_block = 0, .blocks = 1}, 1), 2, 4096));
  ASSERT_EQ(host.completions.size(), 2U);
  EXPECT_EQ(host.completions[1].status, nvme::kAuthenticationRequired);
  EXPECT_EQ(io.reads_waiting(), 0U);
}

TEST_F(SessionAuthentication, WhereNoneIsAskedForItIsNoCommand) {
  Admission open;
  Controllers controllers(subsystem_, open, {});
  Session session({.controllers = &controllers, .space = &space_, .clock = &clock_, .loopback = true, .log = {}});
  HostReader host;
  const auto exchange = [&](const Bytes& bytes) {
    EXPECT_TRUE(session.receive(bytes));
    for (; !session.outgoing().empty(); session.outgoing().pop_front()) {
      EXPECT_TRUE(
          host.receive(std::span(session.outgoing().front().prelude).first(session.outgoing().front().prelude_bytes)));
    }
  };
  exchange(initialize_bytes());
  exchange(connect_bytes({}));
  EXPECT_FALSE(nvme::decode_connected(host.completions[0].result).authentication_required);
  exchange(command_bytes(receive_command(), 2, kRoom));
  EXPECT_EQ(host.completions[1].status, nvme::kInvalidOpcode);
}

}  // namespace
}  // namespace infercluster::target
