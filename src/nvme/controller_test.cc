// SPDX-License-Identifier: Apache-2.0
#include "nvme/controller.h"

#include <gtest/gtest.h>

#include "nvme/bytes.h"

namespace infercluster::nvme {
namespace {

constexpr const char* kNqn = "nqn.2026-01.io.test:pool";
constexpr const char* kHostNqn = "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6";

Subsystem subsystem() {
  Subsystem subsystem{.nqn = kNqn, .uuid = {}, .serial = "42", .firmware = "0.1.0", .blocks = 1ULL << 50};
  subsystem.uuid[0] = std::byte{0xAB};
  return subsystem;
}

Command with_sgl(Command command, std::uint32_t length) {
  command.sgl = {.address = 0, .length = length, .identifier = kSglTransport};
  return command;
}

class ControllerTest : public testing::Test {
 protected:
  explicit ControllerTest(ControllerType type = ControllerType::io)
      : controller_(subsystem_, {.type = type, .id = 7, .keep_alive_ms = 5000}) {}

  Reply admin(const Command& command) { return controller_.admin(command, log_); }
  Reply set_configuration(std::uint64_t value) {
    return admin(encode_property_set({.offset = kPropertyConfiguration, .bytes = 4, .value = value}));
  }
  ControllerStatus status() {
    return decode_controller_status(
        static_cast<std::uint32_t>(admin(encode_property_get({.offset = kPropertyStatus})).result));
  }
  void enable() { ASSERT_TRUE(set_configuration(0x460001).status.ok()); }
  Reply identify(std::uint8_t cns, std::uint32_t nsid, std::uint32_t length = kIdentifyBytes) {
    return admin(with_sgl(encode_identify(cns, nsid), length));
  }
  CommandStatus io_status(const Command& command) {
    const std::variant<ReadCommand, Reply> answer = controller_.io(command);
    return std::holds_alternative<Reply>(answer) ? std::get<Reply>(answer).status : kSuccess;
  }

  Subsystem subsystem_ = subsystem();
  DiscoveryLog log_{.generation = 3,
                    .entries = {{.service = "4420", .subsystem_nqn = kNqn, .address = "127.0.0.1"},
                                {.service = "4421", .subsystem_nqn = kNqn, .address = "::1"}}};
  Controller controller_;
};

class DiscoveryTest : public ControllerTest {
 protected:
  DiscoveryTest() : ControllerTest(ControllerType::discovery) {}
};

std::span<const std::byte, kIdentifyBytes> page(const Reply& reply) {
  return std::span<const std::byte, kIdentifyBytes>(reply.data.data(), kIdentifyBytes);
}

// The commands that Linux sends at `nvme connect`, in its order.
TEST_F(ControllerTest, ALinuxHostComesUp) {
  const Reply capabilities = admin(encode_property_get({.offset = kPropertyCapabilities, .bytes = 8}));
  ASSERT_TRUE(capabilities.status.ok());
  EXPECT_EQ(decode_capabilities(capabilities.result).queue_entries_max, 127);
  EXPECT_EQ(capabilities.result >> 43 & 1U, 0U) << "with this bit hosts ask for command set descriptors";
  EXPECT_TRUE(set_configuration(0x460000).status.ok());
  EXPECT_FALSE(status().ready);
  enable();
  EXPECT_TRUE(status().ready);
  EXPECT_EQ(admin(encode_property_get({.offset = kPropertyVersion})).result, kVersion14);

  const Reply identity = identify(kCnsController, 0);
  ASSERT_TRUE(identity.status.ok());
  const IdentifyController controller = decode_identify_controller(page(identity));
  EXPECT_EQ(controller.controller_id, 7);
  EXPECT_EQ(controller.subsystem_nqn, kNqn);
  EXPECT_NE(controller.keep_alive_100ms, 0);
  EXPECT_NE(controller.commands_max, 0);
  EXPECT_GE(controller.command_capsule_16b, 4U);
  EXPECT_GE(controller.response_capsule_16b, 1U);
  EXPECT_EQ(controller.in_capsule_offset_16b, 0);
  EXPECT_EQ(controller.sgls & 1U, 1U);
  EXPECT_EQ(controller.type, ControllerType::io);
  EXPECT_TRUE(controller.many_controllers);
  EXPECT_EQ(controller.volatile_write_cache, 0);

  EXPECT_EQ(admin(with_sgl(encode_log_request({.page = kLogHealth, .length = 512}), 512)).data.size(), 512U);
  EXPECT_EQ(admin(encode_set_features(kFeatureQueues, 0x00010001)).result, 0x00010001U);
  EXPECT_EQ(admin(encode_set_features(kFeatureQueues, 0x003F003F)).result, 0x00070007U) << "capped";
  EXPECT_EQ(identify(6, 0).status, kInvalidField);
  const Reply list = identify(kCnsActiveNamespaces, 0);
  EXPECT_EQ(decode_namespace_list(page(list)), std::vector<std::uint32_t>{kNamespaceId});
  EXPECT_EQ(decode_namespace_list(page(identify(kCnsActiveNamespaces, 1))), std::vector<std::uint32_t>{});
  EXPECT_EQ(decode_namespace_descriptors(page(identify(kCnsNamespaceDescriptors, 1))), subsystem_.uuid);
  const IdentifyNamespace name_space = decode_identify_namespace(page(identify(kCnsNamespace, 1)));
  EXPECT_EQ(name_space, (IdentifyNamespace{.blocks = 1ULL << 50, .block_bits = 12, .shared = true, .read_only = true}));
  EXPECT_TRUE(admin({.opcode = kKeepAlive}).status.ok());
}

TEST_F(ControllerTest, AShutdownIsCompleteAtOnceAndStopsTheIo) {
  enable();
  EXPECT_FALSE(controller_.stopped());
  ASSERT_TRUE(set_configuration(0x464001).status.ok());
  EXPECT_EQ(status().shutdown, 2);
  EXPECT_TRUE(controller_.stopped());
  EXPECT_EQ(io_status(with_sgl(encode_read({.first_block = 0, .blocks = 1}, 1), 4096)), kCommandSequenceError);
}

TEST_F(ControllerTest, AResetStopsTheIoAndAllowsANewStart) {
  enable();
  ASSERT_TRUE(set_configuration(0x460000).status.ok());
  EXPECT_TRUE(controller_.stopped());
  EXPECT_FALSE(controller_.ready());
  EXPECT_EQ(identify(kCnsController, 0).status, kCommandSequenceError);
  enable();
  EXPECT_FALSE(controller_.stopped());
  EXPECT_TRUE(controller_.ready());
}

TEST_F(ControllerTest, AConfigurationThatWeCannotRunIsFatalAndNotReady) {
  // Another command set, larger pages, another arbitration, other sizes of entries.
  for (const std::uint64_t value : {0x460061ULL, 0x460081ULL, 0x460801ULL, 0x450001ULL, 0x360001ULL}) {
    Controller controller(subsystem_, {});
    ASSERT_TRUE(
        controller.admin(encode_property_set({.offset = kPropertyConfiguration, .value = value}), log_).status.ok());
    const Reply reply = controller.admin(encode_property_get({.offset = kPropertyStatus}), log_);
    EXPECT_EQ(decode_controller_status(static_cast<std::uint32_t>(reply.result)),
              (ControllerStatus{.ready = false, .fatal = true}))
        << value;
  }
}

TEST_F(ControllerTest, OnlyPropertiesThatExistAreRead) {
  EXPECT_EQ(admin(encode_property_get({.offset = kPropertyCapabilities, .bytes = 4})).status, kInvalidField);
  EXPECT_EQ(admin(encode_property_get({.offset = kPropertyStatus, .bytes = 8})).status, kInvalidField);
  EXPECT_EQ(admin(encode_property_get({.offset = 0x20})).status, kInvalidField);
  EXPECT_EQ(admin(encode_property_set({.offset = kPropertyStatus, .value = 1})).status, kInvalidField);
}

TEST_F(ControllerTest, NothingIsAnsweredBeforeItIsEnabled) {
  EXPECT_EQ(identify(kCnsController, 0).status, kCommandSequenceError);
  EXPECT_EQ(admin({.opcode = kKeepAlive}).status, kCommandSequenceError);
  EXPECT_EQ(io_status(with_sgl(encode_read({.first_block = 0, .blocks = 1}, 1), 4096)), kCommandSequenceError);
}

TEST_F(ControllerTest, TheHostsMemoryMustTakeExactlyWhatItAskedFor) {
  enable();
  EXPECT_EQ(identify(kCnsController, 0, 4095).status, kDataSglLengthInvalid);
  EXPECT_EQ(identify(kCnsController, 0, 4097).status, kDataSglLengthInvalid);
  Command command = with_sgl(encode_identify(kCnsController, 0), 4096);
  command.sgl.identifier = kSglInCapsule;
  EXPECT_EQ(admin(command).status, kSglTypeInvalid);
  command.sgl.identifier = kSglTransport;
  command.flags = 0;
  EXPECT_EQ(admin(command).status, kInvalidField);
}

TEST_F(ControllerTest, UnknownNamespacesAreNamedAsSuch) {
  enable();
  for (const std::uint32_t nsid : {0U, 2U, 0xFFFFFFFFU}) {
    EXPECT_EQ(identify(kCnsNamespace, nsid).status, kInvalidNamespace) << nsid;
    EXPECT_EQ(identify(kCnsNamespaceDescriptors, nsid).status, kInvalidNamespace) << nsid;
    EXPECT_EQ(io_status(with_sgl(encode_read({.first_block = 0, .blocks = 1}, nsid), 4096)), kInvalidNamespace) << nsid;
  }
  EXPECT_EQ(identify(kCnsActiveNamespaces, 0xFFFFFFFE).status, kInvalidNamespace);
}

TEST_F(ControllerTest, ReadsEndWhereTheNamespaceEnds) {
  enable();
  const auto read = [&](std::uint64_t first, std::uint32_t blocks) {
    return io_status(with_sgl(encode_read({.first_block = first, .blocks = blocks}, 1), blocks << kBlockBits));
  };
  constexpr std::uint64_t kBlocks = 1ULL << 50;
  EXPECT_TRUE(read(0, 1).ok());
  EXPECT_TRUE(read(kBlocks - 256, 256).ok());
  EXPECT_EQ(read(kBlocks - 255, 256), kLbaOutOfRange);
  EXPECT_EQ(read(kBlocks, 1), kLbaOutOfRange);
  EXPECT_EQ(read(UINT64_MAX, 1), kLbaOutOfRange);
  EXPECT_EQ(read(UINT64_MAX - 254, 256), kLbaOutOfRange);
  EXPECT_EQ(read(0, 257), kInvalidField) << "over MDTS";
  EXPECT_EQ(io_status(with_sgl(encode_read({.first_block = 0, .blocks = 2}, 1), 4096)), kDataSglLengthInvalid);
  const std::variant<ReadCommand, Reply> answer =
      controller_.io(with_sgl(encode_read({.first_block = 9, .blocks = 3}, 1), 3 * 4096));
  ASSERT_TRUE(std::holds_alternative<ReadCommand>(answer));
  EXPECT_EQ(std::get<ReadCommand>(answer), (ReadCommand{.first_block = 9, .blocks = 3}));
}

TEST_F(ControllerTest, NothingIsEverWritten) {
  enable();
  for (const std::uint8_t opcode : {kWrite, kWriteZeroes, kWriteUncorrectable, kDatasetManagement}) {
    EXPECT_EQ(io_status({.opcode = opcode, .nsid = 1}), kNamespaceWriteProtected) << int{opcode};
  }
  EXPECT_TRUE(io_status({.opcode = kFlush, .nsid = 1}).ok());
  EXPECT_TRUE(io_status({.opcode = kFlush, .nsid = 0xFFFFFFFF}).ok());
  EXPECT_EQ(io_status({.opcode = kFlush, .nsid = 2}), kInvalidNamespace);
  EXPECT_EQ(io_status({.opcode = 0x99, .nsid = 1}), kInvalidOpcode);
}

TEST_F(ControllerTest, UnknownCommandsAreRefusedForGood) {
  enable();
  EXPECT_EQ(admin({.opcode = 0xC0}).status, kInvalidOpcode);
  EXPECT_EQ(admin({.opcode = kFabrics, .nsid = 0x77}).status, kInvalidOpcode);
  EXPECT_EQ(admin(encode_connect({})).status, kCommandSequenceError);
  EXPECT_EQ(admin(encode_set_features(0x02, 0)).status, kInvalidField);
  EXPECT_EQ(admin(encode_set_features(kFeatureQueues, 0xFFFFFFFF)).status, kInvalidField);
}

TEST_F(ControllerTest, EventRequestsAreHeldUpToTheLimit) {
  enable();
  for (int i = 0; i < kEventRequestsMax; ++i) {
    const Reply reply = admin({.opcode = kAsyncEventRequest});
    EXPECT_TRUE(reply.held && reply.status.ok());
  }
  const Reply reply = admin({.opcode = kAsyncEventRequest});
  EXPECT_FALSE(reply.held);
  EXPECT_EQ(reply.status, kAsyncEventLimitExceeded);
}

TEST_F(ControllerTest, FeaturesAreReadBack) {
  enable();
  const auto get = [&](std::uint8_t feature) {
    Command command{.opcode = kGetFeatures};
    command.dwords[0] = feature;
    return admin(command);
  };
  EXPECT_EQ(get(kFeatureKeepAlive).result, 5000U);
  ASSERT_TRUE(admin(encode_set_features(kFeatureKeepAlive, 900)).status.ok());
  EXPECT_EQ(get(kFeatureKeepAlive).result, 900U);
  EXPECT_EQ(controller_.keep_alive_ms(), 900U);
  ASSERT_TRUE(admin(encode_set_features(kFeatureAsyncEvents, 0x100)).status.ok());
  EXPECT_EQ(get(kFeatureAsyncEvents).result, 0x100U);
  EXPECT_EQ(get(kFeatureQueues).result, 0x00070007U);
  EXPECT_EQ(get(0x01).status, kInvalidField);
}

TEST_F(DiscoveryTest, TheLogIsReadInThePiecesThatHostsAskFor) {
  enable();
  const std::vector<std::byte> whole = encode(log_);
  const auto read = [&](std::uint64_t offset, std::uint32_t length) {
    return admin(with_sgl(
        encode_log_request({.page = kLogDiscovery, .retain_event = true, .offset = offset, .length = length}), length));
  };
  // Old tools: the header, then all; newer ones: 20 bytes, the entries, 20 bytes again.
  for (const auto& [offset, length] : {std::pair{0U, 1024U}, {0U, 3072U}, {0U, 20U}, {1024U, 2048U}}) {
    const Reply reply = read(offset, length);
    ASSERT_TRUE(reply.status.ok());
    EXPECT_TRUE(
        std::equal(reply.data.begin(), reply.data.end(), whole.begin() + offset, whole.begin() + offset + length))
        << offset;
  }
  const Reply tail = read(2048, 4096);
  ASSERT_EQ(tail.data.size(), 4096U);
  EXPECT_TRUE(std::all_of(tail.data.begin() + 1024, tail.data.end(), [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(read(3076, 4).status, kInvalidField);
  Command odd = with_sgl(encode_log_request({.page = kLogDiscovery, .length = 4}), 4);
  odd.dwords[2] = 2;
  EXPECT_EQ(admin(odd).status, kInvalidField);
  EXPECT_EQ(read(0, (1U << 20) + 4).status, kInvalidField);
}

TEST_F(DiscoveryTest, ADiscoveryControllerHasNothingButItsLog) {
  enable();
  const IdentifyController controller = decode_identify_controller(page(identify(kCnsController, 0)));
  EXPECT_EQ(controller.type, ControllerType::discovery);
  EXPECT_EQ(controller.subsystem_nqn, kDiscoveryNqn);
  EXPECT_EQ(controller.log_attributes & kLogLongOffsets, kLogLongOffsets);
  EXPECT_EQ(identify(kCnsNamespace, 1).status, kInvalidField);
  EXPECT_EQ(admin(with_sgl(encode_log_request({.page = kLogHealth, .length = 512}), 512)).status, kInvalidLogPage);
  EXPECT_EQ(admin(encode_set_features(kFeatureQueues, 0)).status, kInvalidField);
  EXPECT_EQ(io_status(with_sgl(encode_read({.first_block = 0, .blocks = 1}, 1), 4096)), kCommandSequenceError);
}

TEST_F(ControllerTest, AnIoControllerHasNoDiscoveryLog) {
  enable();
  EXPECT_EQ(admin(with_sgl(encode_log_request({.page = kLogDiscovery, .length = 1024}), 1024)).status, kInvalidLogPage);
}

TEST(Connect, QueuesAreOpenedOrTheParameterAtFaultIsNamed) {
  const Subsystem pool = subsystem();
  const Connect admin{.queue_id = 0, .queue_size = 31};
  const ConnectData any{.subsystem_nqn = kNqn, .host_nqn = kHostNqn};
  EXPECT_EQ(check_connect(admin, any, pool), std::nullopt);
  ConnectData one = any;
  one.controller_id = 7;
  EXPECT_EQ(check_connect({.queue_id = 8, .queue_size = 127}, one, pool), std::nullopt);
  ConnectData discovery = any;
  discovery.subsystem_nqn = kDiscoveryNqn;
  EXPECT_EQ(check_connect(admin, discovery, pool), std::nullopt);

  const auto refusal = [&](const Connect& connect, const ConnectData& data) {
    const std::optional<Reply> reply = check_connect(connect, data, pool);
    EXPECT_TRUE(reply.has_value());
    if (!reply) return std::uint64_t{0};
    EXPECT_EQ(reply->status, kConnectInvalidParameters);
    return reply->result;
  };
  ConnectData other = any;
  other.subsystem_nqn = "nqn.2026-01.io.test:other";
  EXPECT_EQ(refusal(admin, other), 0x10100U);
  ConnectData nameless = any;
  nameless.host_nqn = "";
  EXPECT_EQ(refusal(admin, nameless), 0x10200U);
  EXPECT_EQ(refusal({.queue_id = 9, .queue_size = 31}, one), 42U);
  EXPECT_EQ(refusal({.queue_id = 1, .queue_size = 31}, discovery), 42U);
  EXPECT_EQ(refusal({.queue_id = 0, .queue_size = 0}, any), 44U);
  EXPECT_EQ(refusal({.queue_id = 0, .queue_size = 128}, any), 44U);
  EXPECT_EQ(refusal(admin, one), 0x10010U);
  EXPECT_EQ(refusal({.queue_id = 1, .queue_size = 31}, any), 0x10010U);
  EXPECT_EQ(check_connect({.format = 1, .queue_size = 31}, any, pool)->status, kConnectIncompatibleFormat);
}

}  // namespace
}  // namespace infercluster::nvme
