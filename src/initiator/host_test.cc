// SPDX-License-Identifier: Apache-2.0
// The host against our own target, over real sockets.
#include "initiator/host.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <random>

#include "base/units.h"
#include "initiator/remote_source.h"
#include "target/target.h"
#include "testing/temp_dir.h"

namespace infercluster::initiator {
namespace {

class HostTest : public ::testing::Test {
 protected:
  HostTest() {
    target_ = *target::Target::start({.listen = *os::parse_socket_address("127.0.0.1:0"), .shards = 2});
    content_.resize((5 << 20) + 1234);
    std::minstd_rand random(7);
    for (char& c : content_) c = static_cast<char>(random());
    mapping_ = *target_->add(directory_.write("object", content_));
  }
  Url url() const { return {.address = target_->address(), .nqn = target_->subsystem().nqn, .nsid = 1}; }
  std::unique_ptr<Host> connect(const HostOptions& options = {}) {
    Result<std::unique_ptr<Host>> host = Host::connect(url(), options);
    EXPECT_TRUE(host.ok()) << host.error().to_string();
    return *std::move(host);
  }
  std::uint64_t begin() const { return mapping_.first_block * target::kBlockBytes; }
  bool equal(std::span<const std::byte> bytes, std::uint64_t offset) const {
    return std::equal(bytes.begin(), bytes.end(),
                      std::as_bytes(std::span(content_)).begin() + static_cast<std::ptrdiff_t>(offset));
  }

  testing::TempDir directory_;
  std::unique_ptr<target::Target> target_;
  std::string content_;
  target::Mapping mapping_;
};

TEST_F(HostTest, AnyRangeIsReadWithEveryKindOfDigest) {
  std::minstd_rand random(11);
  for (const nvme::Digests digests :
       {nvme::Digests{}, nvme::Digests{.header = true, .data = false}, nvme::Digests{.header = false, .data = true},
        nvme::Digests{.header = true, .data = true}}) {
    HostOptions options;
    options.digests = digests;
    options.queues = 3;
    const std::unique_ptr<Host> host = connect(options);
    EXPECT_EQ(host->blocks(), target::kSpaceBlocks);
    EXPECT_EQ(host->uuid(), target_->subsystem().uuid);
    std::vector<std::byte> whole(content_.size());
    const Status read = host->read(begin(), whole);
    ASSERT_TRUE(read.ok()) << read.error().to_string();
    EXPECT_TRUE(equal(whole, 0));
    for (int i = 0; i < 50; ++i) {
      const std::uint64_t offset = random() % content_.size();
      std::vector<std::byte> part(
          1 + random() % std::min<std::uint64_t>(content_.size() - offset, i % 2 == 0 ? 10'000 : kMiB * 3));
      ASSERT_TRUE(host->read(begin() + offset, part).ok());
      ASSERT_TRUE(equal(part, offset)) << offset << " " << part.size();
    }
  }
}

TEST_F(HostTest, WhatIsGoneIsNotFound) {
  const std::unique_ptr<Host> host = connect();
  std::vector<std::byte> bytes(4096);
  ASSERT_TRUE(host->read(begin(), bytes).ok());
  ASSERT_TRUE(*target_->unmap(mapping_.first_block));
  const Status gone = host->read(begin(), bytes);
  ASSERT_FALSE(gone.ok());
  EXPECT_EQ(gone.error().code(), ErrorCode::not_found);
  EXPECT_FALSE(gone.error().hint().empty());
}

TEST_F(HostTest, BeyondTheEndIsRefusedHere) {
  const std::unique_ptr<Host> host = connect();
  std::vector<std::byte> bytes(4097);
  EXPECT_EQ(host->read((target::kSpaceBlocks - 1) * 4096, bytes).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(host->read(UINT64_MAX, bytes).error().code(), ErrorCode::invalid_argument);
}

TEST_F(HostTest, ReadsOfATargetThatIsGoneFailAtTheirDeadline) {
  const std::unique_ptr<Host> host = connect();
  target_.reset();
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Status> end;
  std::vector<std::byte> bytes(4096);
  ASSERT_TRUE(host->start({.first_block = mapping_.first_block,
                           .blocks = 1,
                           .memory = bytes,
                           .done =
                               [&](const Status& status) {
                                 const std::lock_guard lock(mutex);
                                 end = status;
                                 changed.notify_all();
                               },
                           .deadline = std::chrono::milliseconds(50)})
                  .ok());
  std::unique_lock lock(mutex);
  ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(20), [&] { return end.has_value(); }));
  ASSERT_FALSE(end->ok());
  EXPECT_EQ(end->error().code(), ErrorCode::timed_out) << end->error().to_string();
  EXPECT_FALSE(end->error().hint().empty());
  EXPECT_EQ(host->counters().deadline_misses.value(), 1);
  EXPECT_EQ(host->counters().reads.value(), 0);
}

TEST_F(HostTest, RefusalsSayWhatToDo) {
  Url other = url();
  other.nqn = "nqn.2026-01.io.test:other";
  const Result<std::unique_ptr<Host>> unknown = Host::connect(other, {});
  ASSERT_FALSE(unknown.ok());
  EXPECT_FALSE(unknown.error().hint().empty());
  Url second = url();
  second.nsid = 2;
  EXPECT_FALSE(Host::connect(second, {}).ok());
  Url none = url();
  none.nqn = "";
  EXPECT_EQ(Host::connect(none, {}).error().code(), ErrorCode::invalid_argument);
  HostOptions bad;
  bad.host_nqn = "no";
  EXPECT_EQ(Host::connect(url(), bad).error().code(), ErrorCode::invalid_argument);
}

TEST_F(HostTest, DiscoveryFindsTheSubsystem) {
  const Result<nvme::DiscoveryLog> log = discover(target_->address(), {});
  ASSERT_TRUE(log.ok()) << log.error().to_string();
  ASSERT_EQ(log->entries.size(), 2U);
  EXPECT_EQ(log->entries[1].subsystem_nqn, target_->subsystem().nqn);
  EXPECT_EQ(log->entries[1].service, std::to_string(target_->address().port()));
}

// A listener that says nothing, as a stopped process does.
TEST(SilentTarget, IsNoticedAtTheDeadline) {
  const Result<Fd> listener = os::listen_tcp(*os::parse_socket_address("127.0.0.1:0"));
  ASSERT_TRUE(listener.ok());
  HostOptions options;
  options.connect_timeout = std::chrono::milliseconds(100);
  const Result<std::unique_ptr<Host>> host =
      Host::connect({.address = *os::local_address(*listener), .nqn = "nqn.2026-01.io.test:pool", .nsid = 1}, options);
  ASSERT_FALSE(host.ok());
  EXPECT_EQ(host.error().code(), ErrorCode::timed_out);
}

TEST_F(HostTest, ASourceOfTheEngineReadsTheObjectToItsLastByte) {
  const std::shared_ptr<Host> host = connect();
  Result<std::unique_ptr<RemoteSource>> source =
      RemoteSource::open(host, {.first_block = mapping_.first_block, .bytes = content_.size()});
  ASSERT_TRUE(source.ok());
  std::vector<std::byte> memory(content_.size());
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::pair<std::uint64_t, std::int64_t>> results;
  const io::AttemptDone done = [&](std::uint64_t token, std::int64_t result) {
    const std::lock_guard lock(mutex);
    results.emplace_back(token, result);
    changed.notify_all();
  };
  constexpr std::uint32_t kPiece = 2 << 20;
  std::uint64_t count = 0;
  for (std::uint64_t offset = 0; offset < memory.size(); offset += kPiece, ++count) {
    const auto length = static_cast<std::uint32_t>(std::min<std::uint64_t>(kPiece, memory.size() - offset));
    (*source)->start({.token = count, .offset = offset, .length = length, .memory = memory.data() + offset}, done);
  }
  (*source)->start({.token = 99, .offset = 1, .length = 4096, .memory = memory.data()}, done);
  std::unique_lock lock(mutex);
  ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(20), [&] { return results.size() == count + 1; }));
  for (const auto& [token, result] : results) {
    if (token == 99) {
      EXPECT_EQ(result, -EINVAL);
    } else {
      EXPECT_EQ(result, static_cast<std::int64_t>(std::min<std::uint64_t>(kPiece, memory.size() - token * kPiece)));
    }
  }
  EXPECT_TRUE(equal(memory, 0));
  EXPECT_FALSE(RemoteSource::open(host, {.first_block = target::kSpaceBlocks - 1, .bytes = 4097}).ok());
}

}  // namespace
}  // namespace infercluster::initiator
