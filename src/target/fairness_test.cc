// SPDX-License-Identifier: Apache-2.0
// Hosts that take nothing of what they ask for, beside one that does.
#include <gtest/gtest.h>

#include "target/socket_test_helpers.h"

namespace infercluster::target {
namespace {

TEST_F(TargetTest, HostsThatTakeNothingLeaveMemoryForOthersAndGetTheirsLater) {
  constexpr std::uint16_t kReads = 64;
  constexpr std::uint32_t kBlocks = 256;
  const std::unique_ptr<Target> target =
      start({.limits = {.controllers_per_host = 8},
             .shard = {.connections_max = 64, .buffers = 16, .zero_copy_from = 16384}});
  const Mapping mapping = *target->add(object("large", std::size_t{kReads} << 20));
  const auto read_of = [&](std::uint16_t cid) {
    return command_bytes(nvme::encode_read({.first_block = mapping.first_block + cid * kBlocks, .blocks = kBlocks}, 1),
                         cid, kBlocks * 4096);
  };
  std::vector<std::unique_ptr<SocketQueue>> queues;  // of each host its admin queue, then that of its reads
  for (int host = 0; host < 5; ++host) {
    for (int queue = 0; queue < 2; ++queue) queues.push_back(std::make_unique<SocketQueue>(*target));
    const std::uint16_t controller = queues[queues.size() - 2]->bring_up(*target);
    ASSERT_TRUE(queues.back()->open_io(*target, controller, 1).status.ok());
  }
  const auto queue_of = [&](std::size_t host) -> SocketQueue& { return *queues[2 * host + 1]; };
  for (std::size_t host = 0; host < 4; ++host) {
    for (std::uint16_t cid = 0; cid < kReads; ++cid) ASSERT_TRUE(queue_of(host).send(read_of(cid)));
  }
  for (std::uint16_t cid = 0; cid < kReads; ++cid) {
    ASSERT_TRUE(queue_of(4).send(read_of(cid)));
    ASSERT_TRUE(queue_of(4).next().value().status.ok());
    ASSERT_EQ(queue_of(4).host.data.at(cid), expected("large", cid * kBlocks, kBlocks)) << cid;
    queue_of(4).host.data.clear();
  }
  for (std::size_t host = 0; host < 4; ++host) {
    for (int i = 0; i < kReads; ++i) ASSERT_TRUE(queue_of(host).next().value().status.ok()) << host;
    ASSERT_EQ(queue_of(host).host.data.at(kReads - 1), expected("large", (kReads - 1) * kBlocks, kBlocks));
  }
}

TEST_F(TargetTest, ASecondTargetByTheSameStateIsRefused) {
  const std::string state = directory_.file("state");
  const std::unique_ptr<Target> target = start({.state_path = state});
  const Result<std::unique_ptr<Target>> second =
      Target::start({.listen = *os::parse_socket_address("127.0.0.1:0"), .state_path = state});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().to_string().find("another target"), std::string::npos) << second.error().to_string();
}

}  // namespace
}  // namespace infercluster::target
