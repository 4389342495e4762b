// SPDX-License-Identifier: Apache-2.0
#include "base/fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <type_traits>
#include <utility>

namespace infercluster {
namespace {

int open_null() {
  return ::open("/dev/null", O_RDONLY | O_CLOEXEC);
}
bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) >= 0;
}

static_assert(!std::is_copy_constructible_v<Fd> && !std::is_copy_assignable_v<Fd>);

TEST(Fd, ClosesAtTheEndOfItsLife) {
  int number = -1;
  {
    const Fd fd(open_null());
    number = fd.get();
    EXPECT_TRUE(fd.valid());
    EXPECT_TRUE(is_open(number));
  }
  EXPECT_FALSE(is_open(number));
  EXPECT_FALSE(Fd().valid());
}

TEST(Fd, MovingHandsOverAndClosesWhatWasHeld) {
  Fd first(open_null());
  const int number = first.get();
  Fd second(std::move(first));
  EXPECT_FALSE(first.valid());  // NOLINT(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
  EXPECT_EQ(second.get(), number);
  Fd third(open_null());
  const int replaced = third.get();
  third = std::move(second);
  EXPECT_FALSE(is_open(replaced));
  EXPECT_TRUE(is_open(number));
  Fd& itself = third;
  third = std::move(itself);
  EXPECT_TRUE(is_open(number));
}

TEST(Fd, ClosesOnce) {
  Fd fd(open_null());
  const int number = fd.get();
  EXPECT_EQ(fd.close_checked(), 0);
  EXPECT_FALSE(fd.valid());
  EXPECT_EQ(fd.close_checked(), EBADF);
  const Fd successor(open_null());  // the kernel gives the lowest free number: the same one
  ASSERT_EQ(successor.get(), number);
  fd.reset();
  EXPECT_TRUE(is_open(number));  // a second close would have taken it away
}

TEST(Fd, ReleaseGivesUpOwnership) {
  int number = -1;
  {
    Fd fd(open_null());
    number = fd.release();
    EXPECT_FALSE(fd.valid());
  }
  EXPECT_TRUE(is_open(number));
  ::close(number);
}

}  // namespace
}  // namespace infercluster
