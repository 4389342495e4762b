// SPDX-License-Identifier: Apache-2.0
#include "os/local_socket.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "os/shared_memory.h"

namespace infercluster::os {
namespace {

using namespace std::chrono_literals;

std::string name_of_test() {
  return "infercluster-test-" + std::to_string(::getpid());
}

Clock::TimePoint soon() {
  return steady_clock().now() + 30s;
}

struct Pair {
  LocalSocket one;
  LocalSocket other;
};

Pair connected() {
  auto listener = LocalListener::open(name_of_test(), 1);
  auto one = LocalSocket::connect(name_of_test());
  auto other = listener->accept(soon());
  return {std::move(one).value(), *std::move(other).value()};
}

TEST(LocalSocket, MessagesArriveWholeWhateverTheirSize) {
  Pair pair = connected();
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{5'000'000}}) {
    const std::string sent(size, 'x');
    std::thread sender([&] { EXPECT_TRUE(pair.one.send(sent, -1, soon()).ok()); });
    const auto got = pair.other.receive(5'000'000, soon());
    sender.join();
    ASSERT_TRUE(got.ok()) << got.error().to_string();
    EXPECT_EQ(got->bytes, sent);
    EXPECT_FALSE(got->passed.valid());
  }
}

TEST(LocalSocket, AnEndThatClosesIsNoticed) {
  Pair pair = connected();
  EXPECT_FALSE(pair.one.ended());
  EXPECT_FALSE(pair.one.wait_readable({}));
  { const LocalSocket closed = std::move(pair.other); }
  EXPECT_TRUE(pair.one.ended());
  EXPECT_EQ(pair.one.receive(10, soon()).error().code(), ErrorCode::io);
  EXPECT_EQ(pair.one.send("x", -1, soon()).error().code(), ErrorCode::io);
}

TEST(LocalSocket, LimitsAndDeadlinesAreKept) {
  Pair pair = connected();
  EXPECT_EQ(pair.other.receive(10, steady_clock().now()).error().code(), ErrorCode::timed_out);
  ASSERT_TRUE(pair.one.send(std::string(11, 'x'), -1, soon()).ok());
  EXPECT_EQ(pair.other.receive(10, soon()).error().code(), ErrorCode::too_large);
  EXPECT_EQ(LocalSocket::connect("infercluster-nobody-listens").error().code(), ErrorCode::io);
}

TEST(SharedMemory, IsTheSameForWhoeverGotItsDescriptor) {
  Pair pair = connected();
  auto mine = SharedMemory::create(100'000);
  ASSERT_TRUE(mine.ok()) << mine.error().to_string();
  ASSERT_TRUE(pair.one.send("take it", mine->fd(), soon()).ok());
  auto got = pair.other.receive(10, soon());
  ASSERT_TRUE(got.ok() && got->passed.valid());
  auto theirs = SharedMemory::map(std::move(got->passed), 100'000);
  ASSERT_TRUE(theirs.ok()) << theirs.error().to_string();
  mine->data()[99'999] = std::byte{7};
  EXPECT_EQ(theirs->data()[99'999], std::byte{7});
  EXPECT_NE(::ftruncate(mine->fd(), 1), 0);
}

TEST(SharedMemory, OfAnotherSizeIsRefused) {
  auto mine = SharedMemory::create(4096);
  EXPECT_EQ(SharedMemory::map(Fd(::dup(mine->fd())), 8192).error().code(), ErrorCode::corrupt);
}

}  // namespace
}  // namespace infercluster::os
