// SPDX-License-Identifier: Apache-2.0
#include "exchange/verdict.h"

#include <gtest/gtest.h>

#include <string>

namespace infercluster::exchange {
namespace {

Contribution given(Call call, std::string tag, std::string bytes) {
  return {.call = call, .tag = std::move(tag), .lowest_open = 0, .bytes = std::move(bytes)};
}

Cause cause_in(const Verdict& verdict) {
  const auto* cause = std::get_if<Cause>(&verdict);
  return cause == nullptr ? Cause{.error = Error(ErrorCode::internal, "no cause")} : *cause;
}

TEST(Verdict, GatherGivesAllByRank) {
  const Verdict verdict =
      judge({given(Call::gather, "x", "a"), given(Call::gather, "x", ""), given(Call::gather, "x", "c")});
  ASSERT_TRUE(std::holds_alternative<Values>(verdict));
  EXPECT_EQ(std::get<Values>(verdict), (Values{"a", "", "c"}));
  const auto back = decode_verdict(encode_verdict(verdict), 3);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(std::get<Values>(*back), (Values{"a", "", "c"}));
}

TEST(Verdict, OfAnotherWorldIsRefused) {
  EXPECT_FALSE(decode_verdict(encode_verdict(Values{"a", "b"}), 3).ok());
}

TEST(Verdict, AgreementIsOneBitWhateverTheWorld) {
  const Verdict verdict = judge({given(Call::agree, "x", "same"), given(Call::agree, "x", "same")});
  EXPECT_TRUE(std::holds_alternative<Agreed>(verdict));
  EXPECT_EQ(encode_verdict(verdict).size(), 8U);
}

TEST(Verdict, NamesTheRankThatDiffers) {
  const Cause cause = cause_in(judge({given(Call::agree, "plan", "aa"), given(Call::agree, "plan", "aa"),
                                      given(Call::agree, "plan", "ab"), given(Call::agree, "plan", "aa")}));
  EXPECT_EQ(cause.rank, 2);
  EXPECT_EQ(cause.error.code(), ErrorCode::invalid_argument);
  EXPECT_EQ(cause.error.message(), "rank 2 differs from rank 0 in \"plan\": 6162, not 6161");
}

TEST(Verdict, RankZeroCanBeTheOneThatDiffers) {
  const Cause cause =
      cause_in(judge({given(Call::agree, "p", ""), given(Call::agree, "p", "b"), given(Call::agree, "p", "b")}));
  EXPECT_EQ(cause.rank, 0);
  EXPECT_EQ(cause.error.message(), "rank 0 differs from rank 1 in \"p\": nothing, not 62");
}

TEST(Verdict, LostStepIsTold) {
  const Cause cause = cause_in(judge({given(Call::gather, "roots", ""), given(Call::agree, "plan", "x")}));
  EXPECT_EQ(cause.rank, 1);
  EXPECT_EQ(cause.error.code(), ErrorCode::internal);
  EXPECT_EQ(cause.error.message(), "rank 1 came to agree \"plan\" where rank 0 came to gather \"roots\"");
  EXPECT_EQ(cause_in(judge({given(Call::decide, "roots", ""), given(Call::gather, "roots", "")})).error.message(),
            "rank 1 came to gather \"roots\" where rank 0 came to decide \"roots\"");
}

TEST(Verdict, ADecisionIsAsLongAsItIsWhateverTheWorld) {
  const auto back = decode_verdict(encode_verdict(Decided{std::string("a\0b", 3)}), 1000);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(std::get<Decided>(*back).bytes, std::string("a\0b", 3));
}

TEST(Verdict, TooManyBytesTogetherAreRefused) {
  std::vector<Contribution> all(17, given(Call::gather, "x", std::string(kBytesMax, 'x')));
  EXPECT_EQ(cause_in(judge(all)).error.code(), ErrorCode::too_large);
  all.pop_back();
  EXPECT_TRUE(std::holds_alternative<Values>(judge(all)));
}

TEST(Verdict, CausesComeBack) {
  const Cause cause = cause_of(5, Error(ErrorCode::io, "broken").with_path("/x"), 77);
  const auto back = decode_verdict(encode_verdict(cause), 8);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(cause_in(*back).error.message(), "rank 5: broken");
  EXPECT_EQ(cause_in(*back).bytes, 77U);
}

TEST(Verdict, EveryTruncationIsRefused) {
  for (const Verdict& verdict : {Verdict(Agreed{}), Verdict(Values{"abc", "d"}), Verdict(Decided{"abc"}),
                                 Verdict(cause_of(1, Error(ErrorCode::io, "x"), 0))}) {
    const std::string bytes = encode_verdict(verdict);
    for (std::size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(decode_verdict(bytes.substr(0, size), 2).ok());
    EXPECT_FALSE(decode_verdict(bytes + "x", 2).ok());
  }
}

TEST(Contribution, ComesBackAndTruncationsAreRefused) {
  const std::string bytes = encode_contribution({Call::agree, "plan", 42, "hash"});
  const auto back = decode_contribution(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->call, Call::agree);
  EXPECT_EQ(back->tag, "plan");
  EXPECT_EQ(back->lowest_open, 42U);
  EXPECT_EQ(back->bytes, "hash");
  for (std::size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(decode_contribution(bytes.substr(0, size)).ok());
}

TEST(NameRanks, StaysShort) {
  EXPECT_EQ(name_ranks({3}), "rank 3");
  EXPECT_EQ(name_ranks({3, 5}), "ranks 3 and 5");
  EXPECT_EQ(name_ranks({3, 5, 12}), "ranks 3, 5 and 12");
  std::vector<int> many(100);
  for (int i = 0; i < 100; ++i) many[static_cast<std::size_t>(i)] = i;
  EXPECT_TRUE(name_ranks(many).ends_with("14, 15 and 84 more")) << name_ranks(many);
}

}  // namespace
}  // namespace infercluster::exchange
