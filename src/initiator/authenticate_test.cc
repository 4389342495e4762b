// SPDX-License-Identifier: Apache-2.0
// Hosts that prove themselves to our own target, over real sockets, and those that do not.
#include "initiator/authenticate.h"

#include <gtest/gtest.h>

#include <thread>

#include "initiator/host.h"
#include "nvme/auth_test_helpers.h"
#include "target/target.h"
#include "testing/temp_dir.h"

namespace infercluster::initiator {
namespace {

constexpr const char* kHostNqn = "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6";
constexpr const char* kOtherNqn = "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf7";

nvme::Credentials credentials(const char* host, const char* controller = nullptr) {
  nvme::Credentials made{.host = nvme::secret(host)};
  if (controller != nullptr) made.controller = nvme::secret(controller);
  return made;
}

class AuthenticateTest : public ::testing::Test {
 protected:
  void start(const target::Admission& admission) {
    target_.reset();
    target_ = *target::Target::start({.listen = *os::parse_socket_address("127.0.0.1:0"),
                                      .state_path = (directory_.path() / "state").string(),
                                      .admission = admission,
                                      .shards = 1});
    mapping_ = *target_->add(object_);
  }
  // The same target with another secret.
  void restart_with_secret(const nvme::Credentials& secret) {
    const os::SocketAddress address = target_->address();
    target_.reset();
    target::Admission admission;
    admission.secrets.emplace(kHostNqn, secret);
    target_ = *target::Target::start(
        {.listen = address, .state_path = (directory_.path() / "state").string(), .admission = admission, .shards = 1});
    mapping_ = *target_->add(object_);
  }
  void start_with_secret(const nvme::Credentials& secret) {
    start({.hosts = {}, .any_from_loopback = true, .secrets = {{kHostNqn, secret}}, .secret_of_others = {}});
  }
  Result<std::unique_ptr<Host>> connect(const std::optional<nvme::Credentials>& secrets,
                                        const char* host_nqn = kHostNqn) {
    HostOptions options;
    options.host_nqn = host_nqn;
    options.credentials = secrets;
    options.queues = 2;
    return Host::connect({.address = target_->address(), .nqn = target_->subsystem().nqn, .nsid = 1}, options);
  }
  void expect_reads(const std::optional<nvme::Credentials>& secrets, const char* host_nqn = kHostNqn) {
    const Result<std::unique_ptr<Host>> host = connect(secrets, host_nqn);
    ASSERT_TRUE(host.ok()) << host.error().to_string();
    std::vector<std::byte> bytes(content_.size());
    // More than once, so that each queue has its turn.
    for (int i = 0; i < 3; ++i) {
      const Status read = (*host)->read(mapping_.first_block * target::kBlockBytes, bytes);
      ASSERT_TRUE(read.ok()) << read.error().to_string();
      EXPECT_EQ(bytes[4096], std::byte{'x'});
    }
  }
  Error refused(const std::optional<nvme::Credentials>& secrets, const char* host_nqn = kHostNqn) {
    const Result<std::unique_ptr<Host>> host = connect(secrets, host_nqn);
    EXPECT_FALSE(host.ok());
    return host.ok() ? Error(ErrorCode::internal, "connected") : host.error();
  }
  std::uint64_t refused_at_target() const { return target_->counters()[0]->refused.load(); }

  testing::TempDir directory_;
  std::unique_ptr<target::Target> target_;
  const std::string content_ = std::string(3 * 4096, 'x');
  const std::string object_ = directory_.write("object", content_);
  target::Mapping mapping_;
};

TEST_F(AuthenticateTest, TheRightSecretReadsWithEachHashBothWays) {
  for (const nvme::Credentials& both :
       {credentials(nvme::kHostSecret00), credentials(nvme::kHostSecret01), credentials(nvme::kHostSecret02),
        credentials(nvme::kHostSecret03), credentials(nvme::kHostSecret01, nvme::kControllerSecret01),
        credentials(nvme::kHostSecret02, nvme::kControllerSecret02),
        credentials(nvme::kHostSecret03, nvme::kControllerSecret03)}) {
    start_with_secret(both);
    expect_reads(both);
    EXPECT_EQ(refused_at_target(), 0U);
  }
}

TEST_F(AuthenticateTest, AWrongSecretIsRefusedAndCounted) {
  start_with_secret(credentials(nvme::kHostSecret02));
  const Error error = refused(credentials(nvme::kHostSecret01));
  EXPECT_EQ(error.code(), ErrorCode::permission);
  EXPECT_NE(error.to_string().find("127.0.0.1"), std::string::npos);
  EXPECT_FALSE(error.hint().empty());
  EXPECT_EQ(refused_at_target(), 1U);
  EXPECT_EQ(target_->counters()[0]->reads.load(), 0U);
}

TEST_F(AuthenticateTest, AMissingSecretIsRefusedWithTheOptionToGive) {
  start_with_secret(credentials(nvme::kHostSecret01));
  const Error error = refused(std::nullopt);
  EXPECT_EQ(error.code(), ErrorCode::permission);
  EXPECT_NE(error.hint().find("--dhchap-secret-file"), std::string::npos);
  EXPECT_NE(error.hint().find(kHostNqn), std::string::npos);
  // The target notices that its host left.
  const auto deadline = steady_clock().now() + std::chrono::seconds(20);
  while (refused_at_target() == 0 && steady_clock().now() < deadline) std::this_thread::yield();
  EXPECT_EQ(refused_at_target(), 1U);
}

TEST_F(AuthenticateTest, ATargetThatDoesNotProveItselfIsNotReadFrom) {
  start_with_secret(credentials(nvme::kHostSecret01));
  EXPECT_EQ(refused(credentials(nvme::kHostSecret01, nvme::kControllerSecret01)).code(), ErrorCode::permission);
  start_with_secret(credentials(nvme::kHostSecret01, nvme::kControllerSecret02));
  EXPECT_EQ(refused(credentials(nvme::kHostSecret01, nvme::kControllerSecret01)).code(), ErrorCode::permission);
  EXPECT_EQ(refused_at_target(), 1U);
  // It asks for nothing.
  start({});
  const Error error = refused(credentials(nvme::kHostSecret01, nvme::kControllerSecret01));
  EXPECT_EQ(error.code(), ErrorCode::permission);
  EXPECT_NE(error.hint().find("--dhchap-ctrl-secret-file"), std::string::npos);
  expect_reads(credentials(nvme::kHostSecret01));
}

TEST_F(AuthenticateTest, WhereSecretsAreNobodyIsAdmittedForComingFromThisMachine) {
  start_with_secret(credentials(nvme::kHostSecret01));
  EXPECT_EQ(refused(std::nullopt, kOtherNqn).code(), ErrorCode::permission);
  EXPECT_EQ(refused(credentials(nvme::kHostSecret01), kOtherNqn).code(), ErrorCode::permission);
  // But by name.
  start({.hosts = {kOtherNqn},
         .any_from_loopback = true,
         .secrets = {{kHostNqn, credentials(nvme::kHostSecret01)}},
         .secret_of_others = {}});
  expect_reads(std::nullopt, kOtherNqn);
  EXPECT_EQ(refused(std::nullopt).code(), ErrorCode::permission);
}

TEST_F(AuthenticateTest, ASecretOfAllHoldsForWhoHasNoneOfTheirOwn) {
  start({.hosts = {},
         .any_from_loopback = true,
         .secrets = {{kHostNqn, credentials(nvme::kHostSecret01)}},
         .secret_of_others = credentials(nvme::kHostSecret02)});
  expect_reads(credentials(nvme::kHostSecret01));
  expect_reads(credentials(nvme::kHostSecret02), kOtherNqn);
  EXPECT_EQ(refused(credentials(nvme::kHostSecret02)).code(), ErrorCode::permission);
  EXPECT_EQ(refused(std::nullopt, kOtherNqn).code(), ErrorCode::permission);
}

TEST_F(AuthenticateTest, ALostConnectionIsMadeAnewWithTheSameProofs) {
  const nvme::Credentials both = credentials(nvme::kHostSecret01, nvme::kControllerSecret02);
  start_with_secret(both);
  const Result<std::unique_ptr<Host>> host = connect(both);
  ASSERT_TRUE(host.ok()) << host.error().to_string();
  const std::uint64_t begin = mapping_.first_block * target::kBlockBytes;
  std::vector<std::byte> bytes(content_.size());
  ASSERT_TRUE((*host)->read(begin, bytes).ok());
  restart_with_secret(both);
  const Status again = (*host)->read(begin, bytes);
  EXPECT_TRUE(again.ok()) << again.error().to_string();
  EXPECT_EQ(refused_at_target(), 0U);
  // A target that has another secret for itself by now is not read from.
  restart_with_secret(credentials(nvme::kHostSecret01, nvme::kControllerSecret01));
  const Status refused = (*host)->read(begin, bytes);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::permission) << refused.error().to_string();
  EXPECT_EQ(target_->counters()[0]->reads.load(), 0U);
}

TEST_F(AuthenticateTest, DiscoveryNeedsNoProof) {
  start_with_secret(credentials(nvme::kHostSecret01));
  HostOptions options;
  options.host_nqn = kHostNqn;
  const Result<nvme::DiscoveryLog> log = discover(target_->address(), options);
  ASSERT_TRUE(log.ok()) << log.error().to_string();
  EXPECT_EQ(log->entries[1].subsystem_nqn, target_->subsystem().nqn);
}

}  // namespace
}  // namespace infercluster::initiator
