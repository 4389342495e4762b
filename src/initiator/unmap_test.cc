// SPDX-License-Identifier: Apache-2.0
// Objects that are unmapped, and whose disk space is used again, while many readers hold their addresses.
// INFERCLUSTER_UNMAP_ROUNDS (200): how many objects come and go.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/units.h"
#include "initiator/host.h"
#include "target/target.h"
#include "testing/temp_dir.h"

namespace infercluster::initiator {
namespace {

using target::kBlockBytes;

constexpr unsigned kReaders = 64;
constexpr unsigned kReadsPerRound = 16;  // that have begun before the object is unmapped
constexpr std::size_t kAddressesKept = 16;
constexpr std::size_t kObjectBytesMax = 48 * kBlockBytes;
constexpr std::size_t kRewrittenBytes = 40 * kBlockBytes - 777;

int rounds() {
  const char* text = std::getenv("INFERCLUSTER_UNMAP_ROUNDS");
  return text == nullptr ? 200 : std::atoi(text);
}

// How an object's space on the disk is used again.
enum class Reuse : std::uint8_t {
  after_removal,  // the file is removed, and another takes what the file system gives it: space, inode, descriptor
  in_place,       // the same blocks of the same file are written over: the checksums alone stand in between
};

struct Published {
  Reuse reuse = Reuse::after_removal;
  std::uint64_t first_block = 0;
  std::vector<std::byte> bytes;          // with the padding of the last block
  unsigned begun = 0;                    // reads; under the board's mutex
  std::atomic<bool> unmap_begun{false};  // a read may find it gone
  std::atomic<bool> unmapped{false};     // a read that begins now must
  std::atomic<bool> overwritten{false};  // a read that is under way may find other bytes on the disk
};

// The last addresses, most of which are old.
class Board {
 public:
  void publish(std::shared_ptr<Published> object) {
    const std::lock_guard lock(mutex_);
    objects_[next_++ % kAddressesKept] = std::move(object);
    changed_.notify_all();
  }
  // The newest half of the time; nullptr: it is over.
  std::shared_ptr<Published> choose(std::minstd_rand& random) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return next_ > 0 || over_; });
    if (over_) return nullptr;
    const std::size_t newest = (next_ - 1) % kAddressesKept;
    const std::size_t index = random() % 2 == 0 ? newest : random() % std::min<std::size_t>(next_, kAddressesKept);
    ++objects_[index]->begun;
    changed_.notify_all();
    return objects_[index];
  }
  // False: nobody read it for a minute.
  bool wait_for_reads(const Published& object) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(1), [&] { return object.begun >= kReadsPerRound || over_; });
  }
  void end() {
    const std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<std::shared_ptr<Published>, kAddressesKept> objects_;
  std::size_t next_ = 0;
  bool over_ = false;
};

// No two objects that are near in time share a block.
std::vector<std::byte> content_of(int round, std::size_t bytes) {
  static const std::vector<std::byte> noise = [] {
    std::vector<std::byte> made(kObjectBytesMax + kMiB);
    std::mt19937 random(3);
    for (std::byte& byte : made) byte = static_cast<std::byte>(random());
    return made;
  }();
  const auto from = noise.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(round) * 4099 % kMiB);
  std::vector<std::byte> content(from, from + static_cast<std::ptrdiff_t>(bytes));
  for (std::size_t at = 0; at + sizeof(round) <= bytes; at += kBlockBytes)
    std::memcpy(content.data() + at, &round, sizeof(round));
  return content;
}

struct Outcomes {
  std::atomic<std::uint64_t> right{0};
  std::atomic<std::uint64_t> gone{0};
  std::atomic<std::uint64_t> gone_meanwhile{0};  // mapped when the read began
  std::atomic<std::uint64_t> damaged{0};         // found by the checksum
};

class UnmapTest : public ::testing::Test {
 protected:
  UnmapTest() {
    // A line for each block that was written over would drown the rest.
    set_log_sink([](LogLevel, std::string_view) {});
    target_ = *target::Target::start({.listen = *os::parse_socket_address("127.0.0.1:0"),
                                      .shards = 2,
                                      .shard = {.connections_max = 64, .buffers = 8, .zero_copy_from = 8192}});
    for (const nvme::Digests digests :
         {nvme::Digests{}, nvme::Digests{.header = true, .data = false}, nvme::Digests{.header = false, .data = true},
          nvme::Digests{.header = true, .data = true}}) {
      HostOptions options;
      options.digests = digests;
      options.queues = 2;
      // On a machine that is busy with other things nobody is to give up.
      options.read_deadline = std::chrono::seconds(60);
      options.keep_alive = std::chrono::seconds(120);
      hosts_.push_back(
          *Host::connect({.address = target_->address(), .nqn = target_->subsystem().nqn, .nsid = 1}, options));
    }
  }
  void TearDown() override { set_log_sink({}); }

  void write(const std::string& path, const std::vector<std::byte>& bytes) {
    const Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_TRUE(file.valid());
    ASSERT_EQ(pwrite(file.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }

  void read_one(Host& host, const Published& object, std::minstd_rand& random) {
    const std::size_t offset = random() % object.bytes.size();
    const std::size_t most = random() % 2 == 0 ? kBlockBytes : kObjectBytesMax;
    std::vector<std::byte> into(1 + random() % std::min(object.bytes.size() - offset, most));
    const bool was_unmapped = object.unmapped.load();
    const Status status = host.read(object.first_block * kBlockBytes + offset, into);
    if (status.ok()) {
      ++outcomes_.right;
      EXPECT_FALSE(was_unmapped) << "read after the object was gone";
      ASSERT_EQ(std::memcmp(into.data(), object.bytes.data() + offset, into.size()), 0)
          << "WRONG BYTES from block " << object.first_block << " at " << offset;
    } else if (status.error().code() == ErrorCode::not_found) {
      ++outcomes_.gone;
      if (!was_unmapped) ++outcomes_.gone_meanwhile;
      EXPECT_TRUE(object.unmap_begun.load()) << "gone before it was unmapped";
    } else {
      ++outcomes_.damaged;
      ASSERT_EQ(status.error().code(), ErrorCode::corrupt) << status.error().to_string();
      EXPECT_TRUE(object.overwritten.load()) << status.error().to_string();
    }
  }

  void read_until_the_end(Board& board, unsigned reader) {
    const std::size_t index = reader % hosts_.size();
    // A wrong data digest ends the host's connection, so these hosts read only what is not written over.
    const bool digests = index >= 2;
    std::minstd_rand random(reader + 1);
    while (const std::shared_ptr<Published> object = board.choose(random)) {
      if (digests && object->reuse == Reuse::in_place) continue;
      read_one(*hosts_[index], *object, random);
      if (HasFatalFailure()) board.end();
    }
  }

  // One object comes and goes.
  void go_round(Board& board, int round) {
    const Reuse reuse = round % 2 == 0 ? Reuse::after_removal : Reuse::in_place;
    auto object = std::make_shared<Published>();
    object->reuse = reuse;
    object->bytes = content_of(round, reuse == Reuse::in_place ? kRewrittenBytes : 1 + random_() % kObjectBytesMax);
    const std::string path =
        directory_.file(reuse == Reuse::in_place ? "rewritten" : "removed-" + std::to_string(round));
    if (reuse == Reuse::in_place && rewritten_) rewritten_->overwritten = true;
    write(path, object->bytes);
    if (reuse == Reuse::in_place) rewritten_ = object;
    {
      const Result<target::Mapping> mapping = target_->add(path);
      ASSERT_TRUE(mapping.ok()) << mapping.error().to_string();
      ASSERT_GT(mapping->first_block, last_block_) << "an address was given out again";
      object->first_block = last_block_ = mapping->first_block;
      objects_.push_back(mapping->object);
    }
    object->bytes.resize(align_up(object->bytes.size(), kBlockBytes));
    board.publish(object);
    ASSERT_TRUE(board.wait_for_reads(*object));
    object->unmap_begun = true;
    ASSERT_TRUE(*target_->unmap(object->first_block));
    object->unmapped = true;
    if (reuse == Reuse::after_removal) std::filesystem::remove(path);
  }

  testing::TempDir directory_;
  std::unique_ptr<target::Target> target_;
  std::vector<std::unique_ptr<Host>> hosts_;  // the latter two use data digests
  std::minstd_rand random_{9};
  std::uint64_t last_block_ = 0;
  std::shared_ptr<Published> rewritten_;
  std::vector<std::weak_ptr<const target::Object>> objects_;
  Outcomes outcomes_;
};

TEST_F(UnmapTest, ReadersOfOldAddressesGetTheObjectOrADefiniteErrorAndNeverOtherBytes) {
  Board board;
  std::vector<std::thread> readers;
  for (unsigned i = 0; i < kReaders; ++i) readers.emplace_back([&, i] { read_until_the_end(board, i); });
  for (int round = 0; round < rounds() && !HasFatalFailure(); ++round) go_round(board, round);
  board.end();
  for (std::thread& reader : readers) reader.join();
  for (const auto& host : hosts_) {
    std::vector<std::byte> zeros(kBlockBytes, std::byte{1});
    EXPECT_TRUE(host->read(0, zeros).ok()) << "a connection was lost on the way";
  }
  hosts_.clear();
  target_.reset();
  for (const auto& object : objects_) EXPECT_TRUE(object.expired()) << "an object is still held, and so its space";
  RecordProperty("right", std::to_string(outcomes_.right));
  RecordProperty("gone_meanwhile", std::to_string(outcomes_.gone_meanwhile));
  RecordProperty("damaged", std::to_string(outcomes_.damaged));
  EXPECT_GT(outcomes_.right.load(), 0U);
  EXPECT_GT(outcomes_.gone.load(), 0U);
  EXPECT_GT(outcomes_.gone_meanwhile.load(), 0U);
  std::printf("right %lu, gone %lu (%lu of them while the read was under way), damage found %lu\n",
              static_cast<unsigned long>(outcomes_.right), static_cast<unsigned long>(outcomes_.gone),
              static_cast<unsigned long>(outcomes_.gone_meanwhile), static_cast<unsigned long>(outcomes_.damaged));
}

}  // namespace
}  // namespace infercluster::initiator
