// SPDX-License-Identifier: Apache-2.0
// The target over real sockets.
#include "target/target.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <fstream>

#include "nvme/auth_test_helpers.h"
#include "target/socket_test_helpers.h"

namespace infercluster::target {
namespace {

TEST_F(TargetTest, EveryByteOfEveryObjectIsReadWithEveryKindOfDigest) {
  const std::unique_ptr<Target> target = start({.shards = 2});
  std::vector<std::pair<std::string, Mapping>> objects;
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{4096}, std::size_t{3} << 20, (std::size_t{5} << 20) + 77}) {
    for (const bool in_memory : {false, true}) {
      const std::string name = (in_memory ? "memory-" : "object-") + std::to_string(bytes);
      const Result<Mapping> mapping = target->add(in_memory ? sealed_object(name, bytes) : object(name, bytes));
      ASSERT_TRUE(mapping.ok()) << mapping.error().to_string();
      EXPECT_EQ(mapping->object->memory().size(), in_memory ? bytes : 0);
      objects.emplace_back(name, *mapping);
    }
  }
  for (const nvme::Digests digests :
       {nvme::Digests{}, nvme::Digests{.header = true, .data = false}, nvme::Digests{.header = false, .data = true},
        nvme::Digests{.header = true, .data = true}}) {
    SocketQueue admin(*target);
    const std::uint16_t controller = admin.bring_up(*target, digests);
    SocketQueue io(*target);
    ASSERT_TRUE(io.open_io(*target, controller, 1, digests).status.ok());
    for (const auto& [name, mapping] : objects) {
      for (std::uint64_t block = 0; block < mapping.object->blocks() + 10; block += 256) {
        const nvme::Completion completion =
            io.command(nvme::encode_read({.first_block = mapping.first_block + block, .blocks = 256}, 1), 256 * 4096);
        ASSERT_TRUE(completion.status.ok()) << completion.status.to_string();
        ASSERT_EQ(io.host.data.at(7), expected(name, block, 256)) << name << " at block " << block;
      }
    }
    EXPECT_EQ(io.host.digests_wrong, 0U);
  }
}

TEST_F(TargetTest, AFullQueueOfReadsIsAnsweredOnEachOfSeveralConnections) {
  const std::unique_ptr<Target> target =
      start({.shard = {.connections_max = 16, .buffers = 4, .zero_copy_from = 4096}});
  const Mapping mapping = *target->add(object("many", 8 << 20));
  SocketQueue admin(*target);
  const std::uint16_t controller = admin.bring_up(*target);
  std::vector<std::unique_ptr<SocketQueue>> queues;
  for (std::uint16_t id = 1; id <= 4; ++id) {
    queues.push_back(std::make_unique<SocketQueue>(*target));
    ASSERT_TRUE(queues.back()->open_io(*target, controller, id).status.ok());
    for (std::uint16_t cid = 0; cid < 64; ++cid) {
      ASSERT_TRUE(queues.back()->send(command_bytes(
          nvme::encode_read({.first_block = mapping.first_block + cid * 32U, .blocks = 32}, 1), cid, 32 * 4096)));
    }
  }
  for (const auto& queue : queues) {
    for (int i = 0; i < 64; ++i) ASSERT_TRUE(queue->next().value().status.ok());
    for (std::uint16_t cid = 0; cid < 64; ++cid) ASSERT_EQ(queue->host.data.at(cid), expected("many", cid * 32U, 32));
  }
  const ShardCounters& counters = *target->counters()[0];
  EXPECT_GT(counters.sends_zero_copy.load(), 0U);
  EXPECT_EQ(counters.blocks_verified.load(), 4U * 64 * 32);
}

// Without a buffer, and without a wait for one: hosts' reads of it are bound by their queues alone.
TEST_F(TargetTest, AnObjectInSealedMemoryIsSentFromWhereItLiesAlsoWhenItIsUnmapped) {
  const std::unique_ptr<Target> target =
      start({.shard = {.connections_max = 16, .buffers = 1, .zero_copy_from = 4096}});
  const Mapping mapping = *target->add(sealed_object("many", 8 << 20));
  memory_.clear();
  const Mapping gone = *target->add(sealed_object("gone", 8 << 20));
  memory_.clear();
  SocketQueue admin(*target);
  const std::uint16_t controller = admin.bring_up(*target);
  SocketQueue io(*target);
  ASSERT_TRUE(io.open_io(*target, controller, 1).status.ok());
  for (std::uint16_t cid = 0; cid < 64; ++cid) {
    const std::uint64_t first = (cid < 32 ? gone : mapping).first_block + (cid % 32U) * 32U;
    ASSERT_TRUE(io.send(command_bytes(nvme::encode_read({.first_block = first, .blocks = 32}, 1), cid, 32 * 4096)));
  }
  for (int i = 0; i < 32; ++i) ASSERT_TRUE(io.next().value().status.ok());
  EXPECT_TRUE(*target->unmap(gone.first_block));
  for (int i = 32; i < 64; ++i) ASSERT_TRUE(io.next().value().status.ok());
  for (std::uint16_t cid = 0; cid < 64; ++cid)
    ASSERT_EQ(io.host.data.at(cid), expected(cid < 32 ? "gone" : "many", cid % 32U * 32U, 32));
  EXPECT_EQ(io.command(nvme::encode_read({.first_block = gone.first_block, .blocks = 1}, 1), 4096).status,
            nvme::kExtentGone);
  const ShardCounters& counters = *target->counters()[0];
  EXPECT_EQ(counters.blocks_verified.load(), 64U * 32);
}

// Nobody can change sealed memory; a file may be another one by the next read.
TEST_F(TargetTest, WithoutDataDigestsABlockIsVerifiedOnceInSealedMemoryAndEachTimeFromAFile) {
  const std::unique_ptr<Target> target = start();
  const Mapping sealed = *target->add(sealed_object("sealed", (1 << 20) - 100));
  const Mapping file = *target->add(object("file", 1 << 20));
  SocketQueue admin(*target);
  const std::uint16_t controller = admin.bring_up(*target);
  SocketQueue io(*target);
  ASSERT_TRUE(io.open_io(*target, controller, 1).status.ok());
  const auto verified_by = [&](std::uint64_t first_block, std::uint32_t blocks) {
    const std::uint64_t before = target->counters()[0]->blocks_verified.load();
    const nvme::Command read = nvme::encode_read({.first_block = first_block, .blocks = blocks}, 1);
    EXPECT_TRUE(io.command(read, blocks * 4096).status.ok());
    return target->counters()[0]->blocks_verified.load() - before;
  };
  EXPECT_EQ(verified_by(sealed.first_block + 100, 3), 3U);
  EXPECT_EQ(verified_by(sealed.first_block, 256), 253U);  // the last one with its padding
  EXPECT_EQ(verified_by(sealed.first_block, 256), 0U);
  EXPECT_EQ(verified_by(file.first_block, 256), 256U);
  EXPECT_EQ(verified_by(file.first_block, 256), 256U);
}

TEST_F(TargetTest, WithDataDigestsNoByteIsLookedAt) {
  const std::unique_ptr<Target> target = start();
  const Mapping mapping = *target->add(object("data", 1 << 20));
  SocketQueue admin(*target);
  constexpr nvme::Digests kData{.header = false, .data = true};
  const std::uint16_t controller = admin.bring_up(*target, kData);
  SocketQueue io(*target);
  ASSERT_TRUE(io.open_io(*target, controller, 1, kData).status.ok());
  ASSERT_TRUE(
      io.command(nvme::encode_read({.first_block = mapping.first_block, .blocks = 256}, 1), 1 << 20).status.ok());
  EXPECT_EQ(io.host.digests_wrong, 0U);
  EXPECT_EQ(target->counters()[0]->digests_combined.load(), 1U);
  EXPECT_EQ(target->counters()[0]->blocks_verified.load(), 0U);
}

TEST_F(TargetTest, ABlockThatChangedOnTheDiskIsNeverTakenForARightOne) {
  const std::unique_ptr<Target> target = start();
  const std::string path = object("rot", 64 << 10);
  const Mapping mapping = *target->add(path);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(5 * 4096 + 17);
    file.put('!');
  }
  SocketQueue admin(*target);
  const std::uint16_t controller = admin.bring_up(*target);
  SocketQueue plain(*target);
  ASSERT_TRUE(plain.open_io(*target, controller, 1).status.ok());
  EXPECT_EQ(plain.command(nvme::encode_read({.first_block = mapping.first_block, .blocks = 16}, 1), 64 << 10).status,
            nvme::kUnrecoveredReadError);
  EXPECT_TRUE(
      plain.command(nvme::encode_read({.first_block = mapping.first_block, .blocks = 5}, 1), 5 * 4096).status.ok());
  EXPECT_EQ(target->counters()[0]->blocks_corrupt.load(), 1U);
  SocketQueue digested(*target);
  ASSERT_TRUE(digested.open_io(*target, controller, 2, {.header = false, .data = true}).status.ok());
  EXPECT_TRUE(
      digested.command(nvme::encode_read({.first_block = mapping.first_block, .blocks = 16}, 1), 64 << 10).status.ok());
  EXPECT_EQ(digested.host.digests_wrong, 1U) << "here the host's own check finds it";
}

TEST_F(TargetTest, AFileThatWasCutShortIsAnError) {
  const std::unique_ptr<Target> target = start();
  const std::string path = object("cut", 64 << 10);
  const Mapping mapping = *target->add(path);
  std::filesystem::resize_file(path, 10 << 10);
  SocketQueue admin(*target);
  SocketQueue io(*target);
  ASSERT_TRUE(io.open_io(*target, admin.bring_up(*target), 1).status.ok());
  EXPECT_EQ(io.command(nvme::encode_read({.first_block = mapping.first_block, .blocks = 16}, 1), 64 << 10).status,
            nvme::kUnrecoveredReadError);
}

TEST_F(TargetTest, UnmappedBlocksAreGoneForNewReads) {
  const std::unique_ptr<Target> target = start();
  const Mapping mapping = *target->add(object("gone", 4096));
  SocketQueue admin(*target);
  SocketQueue io(*target);
  ASSERT_TRUE(io.open_io(*target, admin.bring_up(*target), 1).status.ok());
  const nvme::Command read = nvme::encode_read({.first_block = mapping.first_block, .blocks = 1}, 1);
  EXPECT_TRUE(io.command(read, 4096).status.ok());
  EXPECT_TRUE(*target->unmap(mapping.first_block));
  EXPECT_EQ(io.command(read, 4096).status, nvme::kExtentGone);
  EXPECT_FALSE(*target->unmap(mapping.first_block));
}

TEST_F(TargetTest, ARestartKeepsIdentityAndAddressesAndALostStateKeepsNeither) {
  const std::string state = directory_.file("state");
  const std::string kept = object("kept", 9000);
  const std::string changed = object("changed", 9000);
  nvme::Subsystem before;
  Mapping kept_at;
  Mapping changed_at;
  {
    const std::unique_ptr<Target> target = start({.state_path = state});
    before = target->subsystem();
    kept_at = *target->add(kept);
    changed_at = *target->add(changed);
  }
  object("changed", 5000);
  {
    const std::unique_ptr<Target> target = start({.state_path = state});
    EXPECT_EQ(target->subsystem().uuid, before.uuid);
    EXPECT_EQ(target->subsystem().nqn, before.nqn);
    EXPECT_EQ(target->subsystem().serial, before.serial);
    const Mapping fresh = *target->add(changed);
    EXPECT_GT(fresh.first_block, changed_at.first_block);
    EXPECT_GE(fresh.first_block - changed_at.first_block, 2 * (changed_at.object->blocks() + kGuardBlocks))
        << "above all that was ever given out";
    EXPECT_EQ(target->add(kept)->first_block, kept_at.first_block);
  }
  std::filesystem::remove(state);
  const std::unique_ptr<Target> target = start({.state_path = state});
  EXPECT_NE(target->subsystem().uuid, before.uuid);
}

TEST_F(TargetTest, MalformedInputEndsThatConnectionAlone) {
  const std::unique_ptr<Target> target = start();
  const Mapping mapping = *target->add(object("data", 4096));
  SocketQueue admin(*target);
  SocketQueue io(*target);
  ASSERT_TRUE(io.open_io(*target, admin.bring_up(*target), 1).status.ok());
  SocketQueue wrong(*target);
  wrong.initialize();
  ASSERT_TRUE(wrong.send(Bytes(100, std::byte{0xEE})));
  EXPECT_TRUE(wrong.closed_by_target());
  ASSERT_EQ(wrong.host.others.size(), 2U);
  EXPECT_EQ(wrong.host.others[1].type, nvme::PduType::target_terminate);
  EXPECT_TRUE(io.command(nvme::encode_read({.first_block = mapping.first_block, .blocks = 1}, 1), 4096).status.ok());
}

TEST_F(TargetTest, AConnectionTooManyIsClosedAndLaterOnesAreTaken) {
  const std::unique_ptr<Target> target = start({.shard = {.connections_max = 1, .buffers = 4, .zero_copy_from = 4096}});
  {
    SocketQueue first(*target);
    first.initialize();
    SocketQueue second(*target);
    EXPECT_TRUE(second.closed_by_target());
    EXPECT_EQ(target->counters()[0]->connections_refused.load(), 1U);
  }
  for (;;) {
    SocketQueue third(*target);
    ASSERT_TRUE(third.send(initialize_bytes()));
    if (third.read_until([&] { return !third.host.others.empty(); })) break;  // else the first is not gone yet
  }
}

TEST_F(TargetTest, AHostThatDoesNotProveItselfInTimeIsRefused) {
  Admission admission;
  admission.secrets.emplace(kTestHostNqn, nvme::Credentials{.host = nvme::secret(nvme::kHostSecret01)});
  const std::unique_ptr<Target> target =
      start({.admission = admission, .limits = {.authentication_timeout = std::chrono::milliseconds(50)}});
  SocketQueue host(*target);
  host.initialize();
  ConnectTo to;
  to.nqn = target->subsystem().nqn;
  ASSERT_TRUE(nvme::decode_connected(host.connect(to).result).authentication_required);
  EXPECT_TRUE(host.closed_by_target());
  EXPECT_EQ(target->counters()[0]->refused.load(), 1U);
}

TEST_F(TargetTest, TheAdminQueuesEndIsTheEndOfTheOthers) {
  const std::unique_ptr<Target> target = start();
  auto admin = std::make_unique<SocketQueue>(*target);
  SocketQueue io(*target);
  ASSERT_TRUE(io.open_io(*target, admin->bring_up(*target), 1).status.ok());
  admin.reset();
  EXPECT_TRUE(io.closed_by_target());
}

TEST_F(TargetTest, StoppingEndsConnectionsThatAreInTheMiddleOfReads) {
  std::unique_ptr<Target> target = start();
  const Mapping mapping = *target->add(object("large", 4 << 20));
  SocketQueue admin(*target);
  SocketQueue io(*target);
  ASSERT_TRUE(io.open_io(*target, admin.bring_up(*target), 1).status.ok());
  for (std::uint16_t cid = 0; cid < 100; ++cid) {
    ASSERT_TRUE(io.send(
        command_bytes(nvme::encode_read({.first_block = mapping.first_block, .blocks = 256}, 1), cid, 1 << 20)));
  }
  target.reset();
  EXPECT_TRUE(io.closed_by_target());
}

TEST_F(TargetTest, APortInUseIsAnError) {
  const std::unique_ptr<Target> target = start();
  const Result<std::unique_ptr<Target>> second = Target::start({.listen = target->address()});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().system_errno(), EADDRINUSE);
  EXPECT_FALSE(second.error().hint().empty());
}

}  // namespace
}  // namespace infercluster::target
