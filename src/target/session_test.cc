// SPDX-License-Identifier: Apache-2.0
#include "target/session.h"

#include <gtest/gtest.h>

#include "checksum/crc32c.h"
#include "target/host_test_helpers.h"
#include "testing/manual_clock.h"
#include "testing/temp_dir.h"

namespace infercluster::target {
namespace {

// A queue of a host, whose reads are carried out at once.
class Queue {
 public:
  explicit Queue(Session::Environment environment) : session_(std::move(environment)) {}

  // What the target sends is read at once. False: it ends the connection.
  bool send(const Bytes& bytes, std::size_t piece = SIZE_MAX) {
    bool on = true;
    for (std::size_t at = 0; at < bytes.size() && on; at += std::min(piece, bytes.size() - at)) {
      on = session_.receive(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
    }
    serve();
    return on;
  }
  void serve() {
    while (std::optional<PendingRead> read = session_.next_read()) {
      auto data = std::make_shared<Bytes>(read->bytes);
      std::size_t at = 0;
      for (std::size_t i = 0; i < read->pieces.count; ++i) {
        const Piece& piece = read->pieces.list[i];
        const std::size_t bytes = piece.blocks * kBlockBytes;
        if (piece.object) {
          const std::size_t there =
              std::min<std::size_t>(bytes, piece.object->size() - piece.first_block * kBlockBytes);
          EXPECT_TRUE(os::read_exactly(piece.object->fd(), std::span(*data).subspan(at, there),
                                       piece.first_block * kBlockBytes, "object")
                          .ok());
        }
        at += bytes;
      }
      const std::uint32_t crc = checksum::crc32c(*data);
      session_.read_done(*read, {.status = {}, .data = *data, .crc = crc, .held = data});
    }
    for (; !session_.outgoing().empty(); session_.outgoing().pop_front()) {
      const Outgoing& pdu = session_.outgoing().front();
      EXPECT_TRUE(host.receive(std::span(pdu.prelude).first(pdu.prelude_bytes)));
      EXPECT_TRUE(host.receive(pdu.data));
      EXPECT_TRUE(host.receive(std::span(pdu.digest).first(pdu.digest_bytes)));
    }
  }
  nvme::Completion next() {
    EXPECT_FALSE(host.completions.empty());
    if (host.completions.empty()) return {};
    const nvme::Completion completion = host.completions.front();
    host.completions.pop_front();
    return completion;
  }
  void initialize(nvme::Digests digests = {}) {
    host.use(digests);
    digests_ = digests;
    EXPECT_TRUE(send(initialize_bytes(digests)));
  }
  nvme::Completion connect(const ConnectTo& to) {
    EXPECT_TRUE(send(connect_bytes(to, 1, digests_)));
    return next();
  }
  nvme::Completion command(const nvme::Command& command, std::uint32_t length = 0, std::uint16_t cid = 7) {
    host.data.erase(cid);
    EXPECT_TRUE(send(command_bytes(command, cid, length, digests_)));
    return next();
  }
  Session& session() { return session_; }

  HostReader host;

 private:
  Session session_;
  nvme::Digests digests_;
};

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() {
    std::string content(3 * kBlockBytes + 100, '\0');
    for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 13 + i / 4096);
    content_ = content;
    first_block_ = space_.add(*Object::open(directory_.write("object", content)))->first_block;
  }
  Session::Environment environment(bool loopback = true) {
    return {.controllers = &controllers_, .space = &space_, .clock = &clock_, .loopback = loopback, .log = log_};
  }
  // An admin queue that is up, and its controller's id.
  std::uint16_t bring_up(Queue& queue, nvme::Digests digests = {}) {
    queue.initialize(digests);
    const nvme::Completion completion = queue.connect({});
    EXPECT_TRUE(completion.status.ok());
    EXPECT_TRUE(
        queue
            .command(nvme::encode_property_set({.offset = nvme::kPropertyConfiguration, .bytes = 4, .value = 0x460001}))
            .status.ok());
    return nvme::decode_connected(completion.result).controller_id;
  }
  static ConnectTo io_queue(std::uint16_t controller, std::uint8_t attributes = 0) {
    return {.connect = {.format = 0, .queue_id = 1, .queue_size = 3, .attributes = attributes, .keep_alive_ms = 0},
            .controller_id = controller};
  }
  Bytes expected(std::uint64_t block, std::uint32_t blocks) const {
    Bytes bytes(blocks * kBlockBytes);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const std::size_t at = block * kBlockBytes + i;
      if (at < content_.size()) bytes[i] = static_cast<std::byte>(content_[at]);
    }
    return bytes;
  }

  testing::TempDir directory_;
  std::string content_;
  std::uint64_t first_block_ = 0;
  AddressSpace space_;
  testing::ManualClock clock_;
  nvme::Subsystem subsystem_{.nqn = kTestNqn, .uuid = {}, .serial = "1", .firmware = "1", .blocks = kSpaceBlocks};
  nvme::DiscoveryLog log_{.generation = 1,
                          .entries = {{.service = "4420", .subsystem_nqn = kTestNqn, .address = "127.0.0.1"}}};
  Controllers controllers_{subsystem_, {}, {}};
};

TEST_F(SessionTest, AHostReadsWhatIsThereWithEveryKindOfDigest) {
  for (const nvme::Digests digests :
       {nvme::Digests{}, nvme::Digests{.header = true, .data = false}, nvme::Digests{.header = false, .data = true},
        nvme::Digests{.header = true, .data = true}}) {
    for (const std::uint8_t attributes : {std::uint8_t{0}, nvme::kConnectNoFlowControl}) {
      Queue admin(environment());
      const std::uint16_t controller = bring_up(admin, digests);
      Queue io(environment());
      io.initialize(digests);
      ASSERT_TRUE(io.connect(io_queue(controller, attributes)).status.ok());
      for (const auto& [block, blocks] : {std::pair{0U, 1U}, {0U, 4U}, {2U, 3U}, {3U, 200U}}) {
        const nvme::Completion completion =
            io.command(nvme::encode_read({.first_block = first_block_ + block, .blocks = blocks}, 1), blocks * 4096);
        ASSERT_TRUE(completion.status.ok()) << completion.status.to_string();
        EXPECT_EQ(io.host.data.at(7), expected(block, blocks)) << block;
      }
      EXPECT_EQ(io.host.digests_wrong, 0U);
      EXPECT_EQ(io.session().outstanding(), 0U);
      EXPECT_EQ(io.session().counters().digests_combined, digests.data ? 4U : 0U);
    }
  }
}

TEST_F(SessionTest, TheInitializationIsAnsweredAsAsked) {
  Queue queue(environment());
  queue.initialize({.header = true, .data = false});
  ASSERT_EQ(queue.host.others.size(), 1U);
  const auto& response = std::get<nvme::InitializeResponse>(queue.host.others[0].body);
  EXPECT_EQ(response.digests, (nvme::Digests{.header = true, .data = false}));
  EXPECT_EQ(response.alignment, 0);
  EXPECT_GE(response.host_data_max, 4096U);
  EXPECT_EQ(response.host_data_max % 4, 0U);
}

TEST_F(SessionTest, DataBeginsWhereTheHostWantsItTo) {
  Queue admin(environment());
  admin.host.alignment(128);
  EXPECT_TRUE(admin.send(initialize_bytes({}, 31)));
  EXPECT_TRUE(admin.connect({}).status.ok());
  EXPECT_TRUE(
      admin.command(nvme::encode_property_set({.offset = nvme::kPropertyConfiguration, .bytes = 4, .value = 0x460001}))
          .status.ok());
  EXPECT_TRUE(admin.command(nvme::encode_identify(nvme::kCnsController, 0), 4096).status.ok());
  EXPECT_EQ(admin.host.data.at(7).size(), 4096U);
}

TEST_F(SessionTest, WhatIsGoneIsADefiniteError) {
  Queue admin(environment());
  const std::uint16_t controller = bring_up(admin);
  Queue io(environment());
  io.initialize();
  ASSERT_TRUE(io.connect(io_queue(controller)).status.ok());
  ASSERT_TRUE(space_.unmap(first_block_));
  const nvme::Completion completion =
      io.command(nvme::encode_read({.first_block = first_block_, .blocks = 1}, 1), 4096);
  EXPECT_EQ(completion.status, nvme::kExtentGone);
  EXPECT_TRUE(io.host.data.empty());
}

TEST_F(SessionTest, AWriteIsRefusedAndTheQueueGoesOn) {
  Queue admin(environment());
  const std::uint16_t controller = bring_up(admin);
  Queue io(environment());
  io.initialize();
  ASSERT_TRUE(io.connect(io_queue(controller)).status.ok());
  EXPECT_EQ(io.command({.opcode = nvme::kWrite, .nsid = 1}, 4096).status, nvme::kNamespaceWriteProtected);
  EXPECT_TRUE(io.command(nvme::encode_read({.first_block = first_block_, .blocks = 1}, 1), 4096).status.ok());
}

TEST_F(SessionTest, TheHeadOfTheQueueFollowsItsCommands) {
  Queue admin(environment());
  const std::uint16_t controller = bring_up(admin);
  Queue io(environment());
  io.initialize();
  EXPECT_EQ(io.connect(io_queue(controller)).sq_head, 1);
  for (const unsigned head : {2U, 3U, 0U, 1U}) {
    EXPECT_EQ(io.command({.opcode = nvme::kFlush, .nsid = 1}).sq_head, head);
  }
  Queue free(environment());
  free.initialize();
  ConnectTo second = io_queue(controller, nvme::kConnectNoFlowControl);
  second.connect.queue_id = 2;
  EXPECT_EQ(free.connect(second).sq_head, 0xFFFF);
}

TEST_F(SessionTest, ManyCommandsInOneSegmentAreAllAnsweredUpToTheQueuesSize) {
  Queue admin(environment());
  const std::uint16_t controller = bring_up(admin);
  Queue io(environment());
  io.initialize();
  ASSERT_TRUE(io.connect(io_queue(controller)).status.ok());
  Bytes four;
  for (std::uint16_t cid = 0; cid < 4; ++cid) {
    const Bytes one = command_bytes(nvme::encode_read({.first_block = first_block_, .blocks = 1}, 1), cid, 4096);
    four.insert(four.end(), one.begin(), one.end());
  }
  EXPECT_TRUE(io.send(four));
  EXPECT_EQ(io.host.completions.size(), 4U);
  io.host.data.clear();
  const Bytes fifth = command_bytes(nvme::encode_read({.first_block = first_block_, .blocks = 1}, 1), 4, 4096);
  four.insert(four.end(), fifth.begin(), fifth.end());
  EXPECT_FALSE(io.send(four)) << "five at once do not fit a queue of four";
  EXPECT_EQ(std::get<nvme::Terminate>(io.host.others.back().body).status, nvme::FatalStatus::sequence_error);
}

TEST_F(SessionTest, NothingButConnectComesFirst) {
  Queue queue(environment());
  queue.initialize();
  EXPECT_EQ(queue.command(nvme::encode_identify(nvme::kCnsController, 0), 4096).status, nvme::kCommandSequenceError);
  ConnectTo wrong;
  wrong.nqn = "nqn.2026-01.io.test:other";
  EXPECT_EQ(queue.connect(wrong).status, nvme::kConnectInvalidParameters);
  nvme::Command without_data = nvme::encode_connect({.format = 0, .queue_id = 0, .queue_size = 31});
  EXPECT_EQ(queue.command(without_data, 1024).status, nvme::kSglTypeInvalid);
  EXPECT_TRUE(queue.connect({}).status.ok()) << "and after a refusal the host may try again";
}

TEST_F(SessionTest, AHostThatIsNotAdmittedIsToldSo) {
  Queue queue(environment(false));
  queue.initialize();
  EXPECT_EQ(queue.connect({}).status, nvme::kConnectInvalidHost);
}

TEST_F(SessionTest, DiscoveryAnswersWithTheLog) {
  Queue queue(environment());
  queue.initialize();
  ConnectTo discovery;
  discovery.nqn = nvme::kDiscoveryNqn;
  ASSERT_TRUE(queue.connect(discovery).status.ok());
  ASSERT_TRUE(
      queue.command(nvme::encode_property_set({.offset = nvme::kPropertyConfiguration, .bytes = 4, .value = 0x460001}))
          .status.ok());
  ASSERT_TRUE(queue.command(nvme::encode_log_request({.page = nvme::kLogDiscovery, .offset = 0, .length = 2048}), 2048)
                  .status.ok());
  const Result<nvme::DiscoveryLog> log = nvme::decode_discovery_log(queue.host.data.at(7));
  ASSERT_TRUE(log.ok());
  EXPECT_EQ(*log, log_);
}

TEST_F(SessionTest, ACapsuleWhoseDataWasDamagedIsRefusedAndMayComeAgain) {
  constexpr nvme::Digests kData{.header = false, .data = true};
  Queue queue(environment());
  queue.initialize(kData);
  Bytes bytes = connect_bytes({}, 1, kData);
  bytes[500] ^= std::byte{1};
  EXPECT_TRUE(queue.send(bytes));
  EXPECT_EQ(queue.next().status, nvme::kTransientTransportError);
  EXPECT_TRUE(queue.connect({}).status.ok());
}

TEST_F(SessionTest, EventRequestsDoNotFillTheQueue) {
  Queue admin(environment());
  bring_up(admin);
  for (std::uint16_t i = 0; i < nvme::kEventRequestsMax; ++i) {
    EXPECT_TRUE(admin.send(command_bytes({.opcode = nvme::kAsyncEventRequest}, i)));
  }
  EXPECT_TRUE(admin.host.completions.empty());
  EXPECT_EQ(admin.session().outstanding(), 0U);
  EXPECT_EQ(admin.command({.opcode = nvme::kAsyncEventRequest}).status, nvme::kAsyncEventLimitExceeded);
  EXPECT_TRUE(admin.command({.opcode = nvme::kKeepAlive}).status.ok());
}

TEST_F(SessionTest, MalformedInputEndsTheConnectionWithTheReason) {
  const Bytes r2t = wire({.type = nvme::PduType::ready, .flags = 0, .body = nvme::ReadyToTransfer{}});
  const Bytes data =
      wire({.type = nvme::PduType::host_data, .flags = 0, .body = nvme::DataHeader{.length = 4}}, {}, Bytes(4));
  for (const Bytes& bytes : {r2t, data, initialize_bytes(), Bytes(8, std::byte{0xFF})}) {
    Queue queue(environment());
    queue.initialize();
    EXPECT_FALSE(queue.send(bytes, 1));
    ASSERT_EQ(queue.host.others.size(), 2U);
    EXPECT_EQ(queue.host.others[1].type, nvme::PduType::target_terminate);
    EXPECT_FALSE(queue.session().fault().empty());
  }
  Queue early(environment());
  EXPECT_FALSE(early.send(command_bytes({.opcode = nvme::kKeepAlive}, 1)));
}

TEST_F(SessionTest, UnsupportedInitializationsAreRefusedByTheirField) {
  for (const auto& [format, alignment, field] :
       {std::tuple<std::uint16_t, std::uint8_t, std::uint32_t>{1, 0, 8}, {0, 32, 10}}) {
    Queue queue(environment());
    EXPECT_FALSE(queue.send(wire(
        {.type = nvme::PduType::initialize_request,
         .flags = 0,
         .body = nvme::InitializeRequest{.format = format, .alignment = alignment, .digests = {}, .ready_max = 0}})));
    EXPECT_EQ(std::get<nvme::Terminate>(queue.host.others.at(0).body).information, field);
  }
}

TEST_F(SessionTest, AControllerEndsWithItsAdminQueueAndTakesItsQueuesAlong) {
  auto admin = std::make_unique<Queue>(environment());
  const std::uint16_t controller = bring_up(*admin);
  Queue io(environment());
  io.initialize();
  ASSERT_TRUE(io.connect(io_queue(controller)).status.ok());
  EXPECT_FALSE(io.session().ended_by_controller());
  admin.reset();
  EXPECT_TRUE(io.session().ended_by_controller());
  EXPECT_EQ(controllers_.count(), 0U);
}

TEST_F(SessionTest, AShutdownEndsTheIoQueuesWhileTheAdminQueueAnswers) {
  Queue admin(environment());
  const std::uint16_t controller = bring_up(admin);
  Queue io(environment());
  io.initialize();
  ASSERT_TRUE(io.connect(io_queue(controller)).status.ok());
  ASSERT_TRUE(
      admin.command(nvme::encode_property_set({.offset = nvme::kPropertyConfiguration, .bytes = 4, .value = 0x464001}))
          .status.ok());
  EXPECT_TRUE(io.session().ended_by_controller());
  EXPECT_FALSE(admin.session().ended_by_controller());
  const nvme::Completion status = admin.command(nvme::encode_property_get({.offset = nvme::kPropertyStatus}));
  EXPECT_EQ(nvme::decode_controller_status(static_cast<std::uint32_t>(status.result)).shutdown, 2);
}

}  // namespace
}  // namespace infercluster::target
