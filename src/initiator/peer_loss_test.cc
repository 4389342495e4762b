// SPDX-License-Identifier: Apache-2.0
// Targets that stop, die, come back, or were never there, beside one that is well.
#include <filesystem>

#include "initiator/fault_test_helpers.h"
#include "initiator/remote_source.h"
#include "initiator/target_process.h"

namespace infercluster::initiator {
namespace {

using std::chrono::milliseconds;

target::TargetOptions listening(const os::SocketAddress& address, const std::string& state = "") {
  return {.listen = address, .nqn = "nqn.2026-01.io.test:pool", .state_path = state};
}
os::SocketAddress any_port() {
  return *os::parse_socket_address("127.0.0.1:0");
}

// After its end a killed process may keep its port for a moment: the kernel ends its io_uring behind it.
std::unique_ptr<target::Target> start_after_another(const target::TargetOptions& options) {
  const Clock::TimePoint deadline = steady_clock().now() + std::chrono::seconds(20);
  for (;;) {
    Result<std::unique_ptr<target::Target>> target = target::Target::start(options);
    if (target.ok()) return *std::move(target);
    EXPECT_EQ(target.error().system_errno(), EADDRINUSE);
    if (steady_clock().now() > deadline) return nullptr;
    std::this_thread::yield();
  }
}

// An address that takes no connection and refuses none: its backlog is full, so the kernel drops every SYN.
class Swallowing {
 public:
  explicit Swallowing(const os::SocketAddress& address) {
    Result<Fd> listener = os::listen_tcp(address);
    while (!listener.ok()) listener = os::listen_tcp(address);  // of a killed process: see above
    listener_ = *std::move(listener);
    EXPECT_EQ(listen(listener_.get(), 0), 0);
    address_ = *os::local_address(listener_);
    // Until one finds no place.
    while (filling_.size() < 8) {
      Result<Fd> connected = os::connect_tcp(address_, milliseconds(100));
      if (!connected.ok()) break;
      filling_.push_back(*std::move(connected));
    }
  }
  [[nodiscard]] const os::SocketAddress& address() const { return address_; }

 private:
  Fd listener_;
  os::SocketAddress address_;
  std::vector<Fd> filling_;
};

class PeerLossTest : public ::testing::Test {
 protected:
  PeerLossTest() {
    content_.resize(1 << 20);
    std::minstd_rand random(9);
    for (char& c : content_) c = static_cast<char>(random());
    object_ = directory_.write("object", content_);
    options_.backoff = {.first = milliseconds(1), .most = milliseconds(10)};
    options_.silence_max = milliseconds(100);
    options_.connect_timeout = milliseconds(500);
    options_.read_deadline = std::chrono::seconds(30);
  }
  std::shared_ptr<Host> connect(const Url& url) {
    Result<std::unique_ptr<Host>> host = Host::connect(url, options_);
    EXPECT_TRUE(host.ok()) << host.error().to_string();
    return *std::move(host);
  }
  void expect_right(Host& host, std::uint64_t first_block) {
    std::vector<std::byte> bytes(content_.size());
    const Status read = host.read(first_block * target::kBlockBytes, bytes);
    ASSERT_TRUE(read.ok()) << read.error().to_string();
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), std::as_bytes(std::span(content_)).begin()));
  }

  testing::TempDir directory_;
  std::string content_;
  std::string object_;
  HostOptions options_;
};

TEST_F(PeerLossTest, AStoppedTargetHoldsUpNobodyAndIsReadAgainWhenItGoesOn) {
  const TargetProcess stopped(listening(any_port()), object_);
  const TargetProcess well(listening(any_port()), object_);
  const std::shared_ptr<Host> of_stopped = connect(stopped.url());
  const std::shared_ptr<Host> of_well = connect(well.url());
  expect_right(*of_stopped, stopped.first_block());
  expect_right(*of_well, well.first_block());
  stopped.stop();
  // More reads than the queue has entries, by this one thread; none of them waits for the target.
  Reads held;
  for (std::uint64_t i = 0; i < 300; ++i) held.start(*of_stopped, stopped.first_block() + i % 256, 1);
  Reads in_time;
  in_time.start(*of_stopped, stopped.first_block(), 1, milliseconds(150));
  for (int i = 0; i < 20; ++i) expect_right(*of_well, well.first_block());
  ASSERT_TRUE(in_time.wait_for_all());
  EXPECT_EQ(in_time.all()[0]->status->error().code(), ErrorCode::timed_out);
  EXPECT_EQ(held.under_way(), 300U);
  EXPECT_EQ(of_well->counters().connections_lost.value(), 0);
  EXPECT_EQ(of_stopped->counters().deadline_misses.value(), 1);
  stopped.go_on();
  ASSERT_TRUE(held.wait_for_all());
  for (const auto& read : held.all()) {
    ASSERT_TRUE(read->status->ok()) << read->status->error().to_string();
    const std::uint64_t at = (read->first_block - stopped.first_block()) * target::kBlockBytes;
    EXPECT_TRUE(std::equal(read->memory.begin(), read->memory.end(),
                           std::as_bytes(std::span(content_)).begin() + static_cast<std::ptrdiff_t>(at)));
  }
  EXPECT_GE(of_stopped->counters().connections_lost.value(), 1);
  EXPECT_GE(of_stopped->counters().reconnects.value(), 1);
}

TEST_F(PeerLossTest, ATargetRestartedOnItsPortIsReadOnAsLongAsItIsTheSame) {
  options_.silence_max = std::chrono::seconds(10);  // a killed process is not silent
  const std::string state = directory_.file("state");
  auto first = std::make_unique<TargetProcess>(listening(any_port(), state), object_);
  const Url url = first->url();
  const std::uint64_t block = first->first_block();
  const std::shared_ptr<Host> host = connect(url);
  expect_right(*host, block);
  first->kill();
  Reads meanwhile;
  for (std::uint64_t i = 0; i < 50; ++i) meanwhile.start(*host, block + i, 1);
  {
    const std::unique_ptr<target::Target> second = start_after_another(listening(url.address, state));
    ASSERT_NE(second, nullptr);
    ASSERT_EQ(second->add(object_)->first_block, block);
    ASSERT_TRUE(meanwhile.wait_for_all());
    for (const auto& read : meanwhile.all()) {
      // Between its beginning to listen and the mapping of the object the addresses name nothing.
      if (read->status->ok()) {
        EXPECT_EQ(read->memory.front(), static_cast<std::byte>(content_[(read->first_block - block) * 4096]));
      } else {
        EXPECT_EQ(read->status->error().code(), ErrorCode::not_found) << read->status->error().to_string();
      }
    }
    expect_right(*host, block);
    EXPECT_EQ(host->counters().reconnects.value(), 1);
  }
  // Its state is lost: what it has at these addresses is not what was there.
  std::filesystem::remove(state);
  const std::unique_ptr<target::Target> other = start_after_another(listening(url.address, state));
  ASSERT_NE(other, nullptr);
  std::vector<std::byte> bytes(4096);
  const Status changed = host->read(block * target::kBlockBytes, bytes);
  ASSERT_FALSE(changed.ok());
  EXPECT_EQ(changed.error().code(), ErrorCode::changed) << changed.error().to_string();
  EXPECT_FALSE(changed.error().hint().empty());
  EXPECT_EQ(host->counters().reconnects.value(), 1) << "it is not tried again";
  EXPECT_EQ(host->start({.first_block = block, .blocks = 1, .memory = bytes, .done = {}}).error().code(),
            ErrorCode::changed);
}

TEST_F(PeerLossTest, ARefusalForGoodIsNotTriedAgain) {
  auto open = std::make_unique<TargetProcess>(listening(any_port(), directory_.file("state")), object_);
  const Url url = open->url();
  const std::shared_ptr<Host> host = connect(url);
  open->kill();
  target::TargetOptions strict = listening(url.address, directory_.file("state"));
  strict.admission = {.hosts = {"nqn.2026-01.io.test:another"}, .any_from_loopback = false};
  const std::unique_ptr<target::Target> target = start_after_another(strict);
  ASSERT_NE(target, nullptr);
  std::vector<std::byte> bytes(4096);
  const Status refused = host->read(open->first_block() * target::kBlockBytes, bytes);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::permission) << refused.error().to_string();
  EXPECT_NE(refused.error().hint().find("--allow"), std::string::npos);
}

TEST_F(PeerLossTest, AClosedPortAndAnAddressThatSwallowsEndTheConnectingInTime) {
  const os::SocketAddress closed = *os::local_address(*os::listen_tcp(any_port()));
  const Url nobody{.address = closed, .nqn = "nqn.2026-01.io.test:pool", .nsid = 1};
  const Result<std::unique_ptr<Host>> refused = Host::connect(nobody, options_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().system_errno(), ECONNREFUSED);
  EXPECT_FALSE(refused.error().hint().empty());

  const Swallowing swallowing(any_port());
  options_.connect_timeout = milliseconds(150);
  const Clock::TimePoint begin = steady_clock().now();
  const Result<std::unique_ptr<Host>> silent =
      Host::connect({.address = swallowing.address(), .nqn = nobody.nqn, .nsid = 1}, options_);
  ASSERT_FALSE(silent.ok());
  EXPECT_EQ(silent.error().code(), ErrorCode::timed_out) << silent.error().to_string();
  EXPECT_GE(steady_clock().now() - begin, options_.connect_timeout);
}

TEST_F(PeerLossTest, AnAddressThatSwallowsAfterALossHoldsUpNeitherReadsNorTheEnd) {
  TargetProcess gone(listening(any_port()), object_);
  const TargetProcess well(listening(any_port()), object_);
  options_.connect_timeout = std::chrono::hours(1);
  const std::shared_ptr<Host> of_well = connect(well.url());
  std::shared_ptr<Host> of_gone = connect(gone.url());
  gone.kill();
  const Swallowing swallowing(gone.url().address);
  Reads reads;
  for (std::uint64_t i = 0; i < 100; ++i) reads.start(*of_gone, gone.first_block() + i, 1, milliseconds(100));
  ASSERT_TRUE(reads.wait_for_all());
  for (const auto& read : reads.all()) {
    ASSERT_FALSE(read->status->ok());
    EXPECT_EQ(read->status->error().code(), ErrorCode::timed_out);
  }
  expect_right(*of_well, well.first_block());
  of_gone.reset();  // does not wait for the hour
}

// One thread, as the engine's is, over both.
TEST_F(PeerLossTest, ASourceOfADeadTargetDoesNotHoldUpTheThreadThatReadsAnother) {
  const TargetProcess dead(listening(any_port()), object_);
  const TargetProcess well(listening(any_port()), object_);
  const std::shared_ptr<Host> of_dead = connect(dead.url());
  const std::shared_ptr<Host> of_well = connect(well.url());
  const auto dead_source = *RemoteSource::open(of_dead, {.first_block = dead.first_block(), .bytes = content_.size()});
  const auto well_source = *RemoteSource::open(of_well, {.first_block = well.first_block(), .bytes = content_.size()});
  dead.stop();
  std::mutex mutex;
  std::condition_variable changed;
  unsigned from_well = 0;
  unsigned from_dead = 0;
  std::int64_t wrong = 0;
  const io::AttemptDone done = [&](std::uint64_t token, std::int64_t result) {
    const std::lock_guard lock(mutex);
    ++(token % 2 == 0 ? from_dead : from_well);
    if (result != 65'536) wrong = result;
    changed.notify_all();
  };
  std::vector<std::byte> memory(std::size_t{400} * 65'536);
  for (std::uint64_t token = 0; token < 400; ++token) {
    const io::Attempt attempt{
        .token = token, .offset = token % 16 * 65'536, .length = 65'536, .memory = memory.data() + token * 65'536};
    (token % 2 == 0 ? *dead_source : *well_source).start(attempt, done);
  }
  std::unique_lock lock(mutex);
  ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return from_well == 200; }));
  EXPECT_EQ(from_dead, 0U);
  lock.unlock();
  dead.go_on();
  lock.lock();
  ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return from_dead == 200; }));
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace infercluster::initiator
