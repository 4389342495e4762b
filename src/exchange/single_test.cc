// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cerrno>

#include "exchange/exchange.h"

namespace infercluster::exchange {
namespace {

using namespace std::chrono_literals;

TEST(Single, GivesBackWhatItGot) {
  const auto exchange = make_single();
  EXPECT_EQ(exchange->rank(), 0);
  EXPECT_EQ(exchange->world(), 1);
  const auto all = exchange->gather("roots", std::string("a\0b", 3), deadline_in(1s));
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(*all, std::vector<std::string>{std::string("a\0b", 3)});
  EXPECT_TRUE(exchange->agree("plan", "hash", deadline_in(1s)).ok());
  const auto first = [](const std::vector<std::string>& given) -> Result<std::string> { return given.at(0) + "!"; };
  EXPECT_EQ(*exchange->decide("plan", "a", first, deadline_in(1s)), "a!");
  EXPECT_FALSE(exchange->cause().has_value());
}

TEST(Single, FirstAbortStaysTheCause) {
  const auto exchange = make_single();
  ASSERT_TRUE(exchange->check().ok());
  const Error first =
      exchange->abort(Error::from_errno(ENOSPC, "cannot write").with_path("/ckpt/a"), 4096, deadline_in(1s));
  const Error second = exchange->abort(Error(ErrorCode::internal, "later"), 0, deadline_in(1s));
  for (const Error& error :
       {first, second, exchange->check().error(), exchange->gather("x", "", deadline_in(1s)).error(),
        exchange->agree("x", "", deadline_in(1s)).error()}) {
    EXPECT_EQ(error.system_errno(), ENOSPC);
    EXPECT_EQ(error.path(), "/ckpt/a");
    EXPECT_EQ(error.message(), "rank 0: cannot write: No space left on device");
  }
  ASSERT_TRUE(exchange->cause().has_value());
  EXPECT_EQ(exchange->cause()->bytes, 4096U);
}

TEST(Single, WrongArgumentsEndIt) {
  const auto exchange = make_single();
  EXPECT_EQ(exchange->gather("no good", "", deadline_in(1s)).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(exchange->check().error().code(), ErrorCode::invalid_argument);
}

TEST(Single, ADecisionThatFailsEndsIt) {
  const auto exchange = make_single();
  const auto fail = [](const std::vector<std::string>&) -> Result<std::string> { return Error(ErrorCode::io, "no"); };
  EXPECT_EQ(exchange->decide("x", "", fail, deadline_in(1s)).error().message(), "rank 0: no");
  EXPECT_EQ(exchange->check().error().message(), "rank 0: no");
}

TEST(Single, NestedStartsAfreshAndNumbersRise) {
  const auto exchange = make_single();
  auto save = exchange->nested(4);
  ASSERT_TRUE(save.ok());
  (void)(*save)->abort(Error(ErrorCode::io, "x"), 0, deadline_in(1s));
  EXPECT_TRUE(exchange->check().ok());
  EXPECT_EQ(exchange->nested(4).error().code(), ErrorCode::invalid_argument);
  auto next = exchange->nested(5);
  ASSERT_TRUE(next.ok());
  EXPECT_TRUE((*next)->check().ok());
}

}  // namespace
}  // namespace infercluster::exchange
