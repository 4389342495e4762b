// SPDX-License-Identifier: Apache-2.0
#include "memory/arena.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/units.h"
#include "os/limits.h"

namespace infercluster::memory {
namespace {

TEST(Arena, StartsAlignedAndHasTheBytesAskedFor) {
  for (const std::uint64_t bytes : {std::uint64_t{1}, 4095 * kKiB, 2 * kMiB, 5 * kMiB + 3}) {
    auto arena = Arena::allocate(bytes).value();
    EXPECT_EQ(arena->bytes(), bytes);
    EXPECT_EQ(arena->span().address % kArenaAlignment, 0U);
    arena->data()[bytes - 1] = std::byte{7};
  }
}

TEST(Arena, KnowsWhichStepsArePopulated) {
  auto arena = Arena::allocate(2 * kPopulateStep + 1).value();
  ASSERT_EQ(arena->steps(), 3U);
  EXPECT_FALSE(arena->is_populated(0, 1));
  ASSERT_TRUE(arena->populate_step(1).ok());
  EXPECT_TRUE(arena->is_populated(kPopulateStep, kPopulateStep));
  EXPECT_FALSE(arena->is_populated(kPopulateStep - 1, 2));
  EXPECT_FALSE(arena->is_populated(kPopulateStep, kPopulateStep + 1));
  ASSERT_TRUE(arena->populate_step(2).ok());
  EXPECT_TRUE(arena->is_populated(kPopulateStep, kPopulateStep + 1));
  EXPECT_TRUE(arena->is_populated(0, 0));
}

TEST(Arena, PopulatingBringsItsPagesIn) {
  auto arena = Arena::allocate(32 * kMiB).value();
  const std::uint64_t before = os::resident_bytes();
  for (std::uint64_t step = 0; step < arena->steps(); ++step) ASSERT_TRUE(arena->populate_step(step).ok());
  EXPECT_GE(os::resident_bytes(), before + 30 * kMiB);
}

TEST(Arena, IsMemoryOfAChildOnlyOnceItIsInherited) {
  auto arena = Arena::allocate(kMiB).value();
  arena->data()[0] = std::byte{42};
  ASSERT_TRUE(arena->inherit_on_fork().ok());
  const pid_t child = ::fork();
  if (child == 0) ::_exit(static_cast<int>(arena->data()[0]));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 42);
}

TEST(Arena, TooMuchIsAnErrorThatNamesTheBytes) {
  const auto arena = Arena::allocate(std::uint64_t{1} << 46);
  ASSERT_FALSE(arena.ok());
  EXPECT_EQ(arena.error().code(), ErrorCode::out_of_memory);
}

}  // namespace
}  // namespace infercluster::memory
