// SPDX-License-Identifier: Apache-2.0
#include "target/controllers.h"

#include <gtest/gtest.h>

#include "target/host_test_helpers.h"
#include "testing/manual_clock.h"

namespace infercluster::target {
namespace {

class ControllersTest : public ::testing::Test {
 protected:
  static nvme::Connect queue(std::uint16_t id, std::uint32_t keep_alive_ms = 0) {
    return {.format = 0, .queue_id = id, .queue_size = 31, .attributes = 0, .keep_alive_ms = keep_alive_ms};
  }
  static nvme::ConnectData host(const char* nqn, std::uint16_t controller = nvme::kAnyController) {
    return {.host_id = {}, .controller_id = controller, .subsystem_nqn = kTestNqn, .host_nqn = nqn};
  }
  Controllers::Opened open(const nvme::Connect& connect, const nvme::ConnectData& data, bool loopback = false) {
    return controllers_.open(connect, data, {.loopback = loopback}, clock_.now());
  }
  std::shared_ptr<ControllerSlot> admin(const char* nqn, std::uint32_t keep_alive_ms = 0) {
    Controllers::Opened opened = open(queue(0, keep_alive_ms), host(nqn));
    EXPECT_TRUE(std::holds_alternative<std::shared_ptr<ControllerSlot>>(opened));
    return std::get<std::shared_ptr<ControllerSlot>>(opened);
  }
  static nvme::CommandStatus status(const Controllers::Opened& opened) {
    const auto* reply = std::get_if<nvme::Reply>(&opened);
    return reply != nullptr ? reply->status : nvme::kSuccess;
  }
  static void enable(ControllerSlot& slot) {
    ASSERT_TRUE(
        slot.admin(nvme::encode_property_set({.offset = nvme::kPropertyConfiguration, .bytes = 4, .value = 0x460001}),
                   {})
            .status.ok());
  }

  static constexpr const char* kOther = "nqn.2014-08.org.nvmexpress:uuid:00000000-7dec-11d0-a765-00a0c91e6bf6";
  nvme::Subsystem subsystem_{.nqn = kTestNqn, .uuid = {}, .serial = "1", .firmware = "1", .blocks = 1ULL << 50};
  testing::ManualClock clock_;
  Controllers controllers_{subsystem_,
                           {.hosts = {kTestHostNqn}, .any_from_loopback = true},
                           {.controllers_max = 3, .controllers_per_host = 2}};
};

TEST_F(ControllersTest, HostsAreAdmittedByNameOrFromThisMachine) {
  EXPECT_TRUE(status(open(queue(0), host(kTestHostNqn))).ok());
  EXPECT_EQ(status(open(queue(0), host(kOther))), nvme::kConnectInvalidHost);
  EXPECT_TRUE(status(open(queue(0), host(kOther), true)).ok());
}

TEST_F(ControllersTest, AStrictListAdmitsNobodyElseNotEvenFromThisMachine) {
  Controllers strict(subsystem_, {.hosts = {kTestHostNqn}, .any_from_loopback = false}, {});
  EXPECT_EQ(status(strict.open(queue(0), host(kOther), {.loopback = true}, clock_.now())), nvme::kConnectInvalidHost);
}

TEST_F(ControllersTest, TheirNumberIsLimitedPerHostAndInAll) {
  const auto first = admin(kTestHostNqn);
  const auto second = admin(kTestHostNqn);
  EXPECT_NE(first->id(), second->id());
  EXPECT_EQ(status(open(queue(0), host(kTestHostNqn))), nvme::kConnectControllerBusy);
  EXPECT_TRUE(status(open(queue(0), host(kOther), true)).ok());
  EXPECT_EQ(status(open(queue(0), host("nqn.2026-01.io.test:third"), true)), nvme::kConnectControllerBusy);
  controllers_.queue_closed(first, 0);
  EXPECT_EQ(controllers_.count(), 2U);
  EXPECT_TRUE(status(open(queue(0), host(kTestHostNqn))).ok());
}

TEST_F(ControllersTest, QueuesJoinTheirOwnHostsController) {
  const auto slot = admin(kTestHostNqn);
  EXPECT_EQ(status(open(queue(1), host(kTestHostNqn, slot->id()))), nvme::kCommandSequenceError)
      << "it is not enabled yet";
  enable(*slot);
  EXPECT_TRUE(status(open(queue(1), host(kTestHostNqn, slot->id()))).ok());
  EXPECT_EQ(status(open(queue(1), host(kTestHostNqn, slot->id()))), nvme::kCommandSequenceError)
      << "the queue is open already";
  EXPECT_EQ(status(open(queue(2), host(kTestHostNqn, 99))), nvme::kConnectInvalidParameters);
  EXPECT_EQ(status(open(queue(2), host(kOther, slot->id()), true)), nvme::kConnectInvalidParameters)
      << "another host's controller";
  controllers_.queue_closed(slot, 1);
  EXPECT_TRUE(status(open(queue(1), host(kTestHostNqn, slot->id()))).ok());
}

TEST_F(ControllersTest, AControllerGoesWithItsAdminQueue) {
  const auto slot = admin(kTestHostNqn);
  enable(*slot);
  controllers_.queue_closed(slot, 0);
  EXPECT_TRUE(slot->closed());
  EXPECT_EQ(status(open(queue(1), host(kTestHostNqn, slot->id()))), nvme::kConnectInvalidParameters);
}

TEST_F(ControllersTest, AHostThatFallsSilentIsClosed) {
  const auto slot = admin(kTestHostNqn, 5000);
  const auto forever = admin(kTestHostNqn, 0);
  clock_.advance(std::chrono::seconds(4));
  controllers_.close_silent(clock_.now());
  EXPECT_FALSE(slot->closed());
  slot->heard(clock_.now());
  clock_.advance(std::chrono::seconds(5));
  controllers_.close_silent(clock_.now());
  EXPECT_FALSE(slot->closed());
  clock_.advance(std::chrono::milliseconds(1));
  controllers_.close_silent(clock_.now());
  EXPECT_TRUE(slot->closed());
  EXPECT_FALSE(forever->closed());
}

TEST_F(ControllersTest, AShutdownStopsTheIoQueuesAlone) {
  const auto slot = admin(kTestHostNqn);
  enable(*slot);
  EXPECT_FALSE(slot->stopped());
  (void)slot->admin(nvme::encode_property_set({.offset = nvme::kPropertyConfiguration, .bytes = 4, .value = 0x464001}),
                    {});
  EXPECT_TRUE(slot->stopped());
  EXPECT_FALSE(slot->closed());
}

}  // namespace
}  // namespace infercluster::target
