// SPDX-License-Identifier: Apache-2.0
// Targets that take no data in capsules, and ask for it instead.
#include "initiator/fault_test_helpers.h"
#include "nvme/auth_test_helpers.h"
#include "testing/asking_target.h"

namespace infercluster::initiator {
namespace {

constexpr const char* kHostNqn = "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6";
constexpr std::array kDigests{nvme::Digests{}, nvme::Digests{.header = true, .data = false},
                              nvme::Digests{.header = false, .data = true},
                              nvme::Digests{.header = true, .data = true}};

class AskedTest : public FaultTest {
 public:
  ~AskedTest() override {
    host_.reset();
    proxy_.reset();
  }

 protected:
  // From here on the way to the target leads through one that asks.
  void ask(const testing::AskingTarget::Options& options) {
    host_.reset();
    proxy_.reset();
    asking_ = std::make_unique<testing::AskingTarget>(options);
    proxy_ = std::make_unique<testing::NvmeProxy>(target_->address(), asking_->plan(), testing::NvmeProxy::Options{});
  }
  void start_with_secrets(const nvme::Credentials& both) {
    target_ = *target::Target::start(
        {.listen = *os::parse_socket_address("127.0.0.1:0"),
         .state_path = (directory_.path() / "state").string(),
         .admission = {.hosts = {}, .any_from_loopback = true, .secrets = {{kHostNqn, both}}, .secret_of_others = {}},
         .shards = 1});
    mapping_ = *target_->add(directory_.write("object", content_));
    options_.host_nqn = kHostNqn;
    options_.credentials = both;
  }
  Error refused() const {
    const Result<std::unique_ptr<Host>> host = Host::connect(url(), options_);
    EXPECT_FALSE(host.ok());
    return host.ok() ? Error(ErrorCode::internal, "connected") : host.error();
  }

  std::unique_ptr<testing::AskingTarget> asking_;
};

TEST_F(AskedTest, ConnectsOnceMoreAndSendsWhenAsked) {
  options_.queues = 3;
  for (const nvme::Digests& digests : kDigests) {
    options_.digests = digests;
    ask({});
    connect();
    expect_reads_right(8, 4);
    // Only the admin queue tried; each queue was asked once for all of its data.
    EXPECT_EQ(asking_->refused(), 1U);
    EXPECT_EQ(proxy_->connections(), 1U + 4U);
    EXPECT_EQ(asking_->asked(), 4U);
    EXPECT_EQ(asking_->data_pdus(), 4U);
  }
}

TEST_F(AskedTest, SendsInThePiecesThatTheTargetAsksForAndTakesAtOnce) {
  struct Case {
    testing::AskingTarget::Options options;
    unsigned asked = 0;
    unsigned data_pdus = 0;
  };
  // Of 1,024 bytes, on two queues.
  for (const Case& c :
       {Case{{.ask_at_once = 256}, 8, 8}, Case{{.ask_at_once = 1000}, 4, 4}, Case{{.host_data_max = 400}, 2, 6},
        Case{{.host_data_max = 512, .alignment = 31}, 2, 4}, Case{{.ask_at_once = 768, .host_data_max = 512}, 4, 6},
        Case{{.alignment = 15}, 2, 2}, Case{{.ask_at_once = 4, .host_data_max = 4}, 512, 512}}) {
    for (const nvme::Digests& digests : kDigests) {
      options_.digests = digests;
      ask(c.options);
      connect();
      expect_reads_right();
      EXPECT_EQ(asking_->asked(), c.asked);
      EXPECT_EQ(asking_->data_pdus(), c.data_pdus);
    }
  }
}

TEST_F(AskedTest, ProvesItselfInThePiecesThatItIsAskedFor) {
  start_with_secrets(
      {.host = nvme::secret(nvme::kHostSecret03), .controller = nvme::secret(nvme::kControllerSecret03)});
  for (const nvme::Digests& digests : kDigests) {
    options_.digests = digests;
    ask({.ask_at_once = 64, .host_data_max = 48});
    connect();
    expect_reads_right();
    // More than the two Connects.
    EXPECT_GT(asking_->asked(), 2U * 1024 / 64);
  }
  EXPECT_EQ(target_->counters()[0]->refused.load(), 0U);
}

TEST_F(AskedTest, AnswersToDiscoveryToo) {
  ask({.ask_at_once = 512});
  const Result<nvme::DiscoveryLog> log = discover(proxy_->address(), options_);
  ASSERT_TRUE(log.ok()) << log.error().to_string();
  EXPECT_EQ(log->entries[1].subsystem_nqn, target_->subsystem().nqn);
}

TEST_F(AskedTest, ALostConnectionIsMadeAnewInTheSameWay) {
  ask({});
  connect();
  expect_reads_right();
  proxy_->cut_all();
  expect_reads_right();
  EXPECT_EQ(host_->counters().reconnects.value(), 1);
  EXPECT_EQ(asking_->refused(), 2U);
}

struct Wrong {
  const char* what;
  void (*spoil)(nvme::ReadyToTransfer&);
  nvme::FatalStatus status;
};

TEST_F(AskedTest, AWrongRequestForDataEndsTheConnectionAndIsNamed) {
  using Ready = nvme::ReadyToTransfer;
  constexpr auto kField = nvme::FatalStatus::invalid_header_field;
  constexpr auto kRange = nvme::FatalStatus::data_out_of_range;
  for (const Wrong& wrong : {
           Wrong{"of no command", [](Ready& ready) { ++ready.cid; }, kField},
           Wrong{"of length 0", [](Ready& ready) { ready.length = 0; }, kField},
           Wrong{"too long by 1", [](Ready& ready) { ++ready.length; }, kRange},
           Wrong{"of length 2^32 - 1", [](Ready& ready) { ready.length = UINT32_MAX; }, kRange},
           Wrong{"from behind the end", [](Ready& ready) { ready.offset = 1024; }, kRange},
           Wrong{"from 2^32 - 4", [](Ready& ready) { ready.offset = UINT32_MAX - 3; }, kRange},
           Wrong{"with a gap",
                 [](Ready& ready) {
                   ready = {ready.cid, ready.tag, 4, 8};
                 },
                 kRange},
       }) {
    SCOPED_TRACE(wrong.what);
    for (const nvme::Digests& digests : kDigests) {
      options_.digests = digests;
      ask({});
      asking_->spoil(wrong.spoil);
      const Error error = refused();
      EXPECT_EQ(error.code(), ErrorCode::corrupt) << error.to_string();
      EXPECT_NE(error.message().find("it asks for"), std::string::npos) << error.to_string();
      proxy_.reset();  // what it read from the host is known then
      ASSERT_EQ(asking_->terminations().size(), 1U);
      EXPECT_EQ(asking_->terminations()[0].status, wrong.status);
      EXPECT_EQ(asking_->data_pdus(), 0U);
    }
  }
}

TEST_F(AskedTest, DataThatWasSentIsNotSentTwice) {
  ask({.ask_at_once = 512});
  asking_->spoil([](nvme::ReadyToTransfer& ready) { ready.offset = 0; });
  EXPECT_EQ(refused().code(), ErrorCode::corrupt);
  proxy_.reset();
  EXPECT_EQ(asking_->data_pdus(), 1U);
  ASSERT_EQ(asking_->terminations().size(), 1U);
  EXPECT_EQ(asking_->terminations()[0].status, nvme::FatalStatus::data_out_of_range);
}

}  // namespace
}  // namespace infercluster::initiator
