// SPDX-License-Identifier: Apache-2.0
#include "base/result.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace infercluster {
namespace {

Result<int> number(bool good) {
  if (!good) return Error(ErrorCode::io, "no number");
  return 7;
}

Status nothing(bool good) {
  if (!good) return Error(ErrorCode::io, "no nothing");
  return {};
}

Result<std::string> chain(bool first, bool second, int& reached) {
  IC_TRY(const int value, number(first));
  ++reached;
  IC_CHECK(nothing(second));
  ++reached;
  return std::to_string(value);
}

TEST(Result, HoldsAValueOrAnError) {
  EXPECT_TRUE(number(true));
  EXPECT_EQ(*number(true), 7);
  EXPECT_FALSE(number(false));
  EXPECT_EQ(number(false).error().message(), "no number");
  EXPECT_TRUE(nothing(true).ok());
  EXPECT_EQ(nothing(false).error().message(), "no nothing");
}

TEST(Result, TryAndCheckLeaveAtTheFirstError) {
  int reached = 0;
  EXPECT_EQ(chain(true, true, reached).value(), "7");
  EXPECT_EQ(reached, 2);
  reached = 0;
  EXPECT_EQ(chain(false, true, reached).error().message(), "no number");
  EXPECT_EQ(reached, 0);
  EXPECT_EQ(chain(true, false, reached).error().message(), "no nothing");
  EXPECT_EQ(reached, 1);
}

TEST(Result, MoveOnlyValuesAreMovedOut) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(3));
  EXPECT_EQ(**result, 3);
  const std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 3);
  const auto use = [](bool good) -> Result<int> {
    const auto make = [&]() -> Result<std::unique_ptr<int>> {
      if (!good) return Error(ErrorCode::io, "none");
      return std::make_unique<int>(4);
    };
    IC_TRY(const auto pointer, make());
    return *pointer;
  };
  EXPECT_EQ(use(true).value(), 4);
  EXPECT_FALSE(use(false));
}

TEST(Result, MembersAreReachedByArrow) {
  struct Pair {
    int a;
    int b;
  };
  Result<Pair> result(Pair{1, 2});
  EXPECT_EQ(result->b, 2);
  result->a = 5;
  EXPECT_EQ(result.value().a, 5);
}

TEST(ResultDeathTest, AskingForWhatIsNotThereAborts) {
  EXPECT_DEATH((void)number(false).value(), "internal error: ok\\(\\) does not hold");
  EXPECT_DEATH((void)number(true).error(), "internal error");
  EXPECT_DEATH((void)nothing(true).error(), "internal error");
}

TEST(AssertDeathTest, SaysWhatAndWhere) {
  EXPECT_DEATH(IC_ASSERT(1 + 1 == 3), "internal error: 1 \\+ 1 == 3 does not hold, at .*result_test.cc:[0-9]+");
  int evaluated = 0;
  IC_ASSERT(++evaluated == 1);
  EXPECT_EQ(evaluated, 1);
}

}  // namespace
}  // namespace infercluster
