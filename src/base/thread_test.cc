// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <csignal>
#include <string>

#include "testing/child.h"

namespace infercluster {
namespace {

using testing::in_child;

TEST(StartThread, BlocksAllSignalsThereAndNoneHere) {
  sigset_t before;
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &before), 0);
  sigset_t inside;
  start_thread("test", [&] { pthread_sigmask(SIG_SETMASK, nullptr, &inside); }).join();
  for (const int number : {SIGINT, SIGTERM, SIGCHLD, SIGUSR1, SIGPIPE, SIGALRM}) {
    EXPECT_EQ(sigismember(&inside, number), 1) << number;
  }
  sigset_t after;
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &after), 0);
  for (int number = 1; number < SIGRTMAX; ++number) {
    EXPECT_EQ(sigismember(&after, number), sigismember(&before, number)) << number;
  }
}

TEST(StartThread, BearsItsNameCutToWhatTheKernelHolds) {
  const auto name_of_thread = [](std::string_view name) {
    std::array<char, 16> found{};
    start_thread(name, [&] { pthread_getname_np(pthread_self(), found.data(), found.size()); }).join();
    return std::string(found.data());
  };
  EXPECT_EQ(name_of_thread("ic-ring-0"), "ic-ring-0");
  EXPECT_EQ(name_of_thread("a-name-of-twenty-byt"), "a-name-of-twent");
}

// In a child of its own, so that "first used" starts afresh whatever ran before in this process.
TEST(ForkDetection, AChildKnowsThatItIsNotTheOwner) {
  EXPECT_EQ(in_child([] {
              if (in_forked_child()) return 1;  // never used yet
              remember_process();
              if (in_forked_child()) return 2;
              const int child_said = in_child([] {
                remember_process();  // the first call won, in the parent
                return in_forked_child() ? 0 : 3;
              });
              if (child_said != 0) return child_said;
              return in_forked_child() ? 4 : 0;
            }),
            0);
}

TEST(ForkDetection, AChildOfAProcessThatUsedNothingIsFree) {
  EXPECT_EQ(in_child([] {
              remember_process();
              return in_forked_child() ? 1 : 0;
            }),
            0);
}

}  // namespace
}  // namespace infercluster
