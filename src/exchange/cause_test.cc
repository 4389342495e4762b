// SPDX-License-Identifier: Apache-2.0
#include "exchange/cause.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

namespace infercluster::exchange {
namespace {

Cause full_cause() {
  return cause_of(3,
                  Error::from_errno(EDQUOT, "cannot write")
                      .with_path("/ckpt/step-7/node-0.0.safetensors")
                      .with_offset(4096)
                      .with_tensor("layer.0")
                      .with_hint("Free some space")
                      .with_kind("Quota"),
                  12345);
}

TEST(Cause, ComesBackWhole) {
  const Cause cause = full_cause();
  const auto back = decode_cause(encode_cause(cause));
  ASSERT_TRUE(back.ok()) << back.error().to_string();
  EXPECT_EQ(back->rank, 3);
  EXPECT_EQ(back->bytes, 12345U);
  EXPECT_EQ(back->error.code(), cause.error.code());
  EXPECT_EQ(back->error.system_errno(), EDQUOT);
  EXPECT_EQ(back->error.message(), cause.error.message());
  EXPECT_EQ(back->error.path(), cause.error.path());
  EXPECT_EQ(back->error.offset(), 4096U);
  EXPECT_EQ(back->error.tensor(), "layer.0");
  EXPECT_EQ(back->error.hint(), "Free some space");
  EXPECT_EQ(back->error.kind(), "Quota");
  EXPECT_TRUE(back->error.message().starts_with("rank 3: cannot write: ")) << back->error.message();
}

TEST(Cause, WithoutOffsetStaysWithoutOffset) {
  const auto back = decode_cause(encode_cause(cause_of(0, Error(ErrorCode::io, "x"), 0)));
  ASSERT_TRUE(back.ok());
  EXPECT_FALSE(back->error.offset().has_value());
}

TEST(Cause, EveryTruncationAndTrailingByteIsRefused) {
  const std::string bytes = encode_cause(full_cause());
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_EQ(decode_cause(bytes.substr(0, size)).error().code(), ErrorCode::corrupt) << size;
  EXPECT_FALSE(decode_cause(bytes + "x").ok());
}

TEST(Cause, NumbersOutOfRangeAreRefused) {
  for (const std::size_t field : {0U, 2U, 3U}) {  // rank, code, errno
    std::string bytes = encode_cause(full_cause());
    bytes[field * 8 + 5] = 1;
    EXPECT_FALSE(decode_cause(bytes).ok()) << field;
  }
}

TEST(Cause, LongTextsAreCutAndFit) {
  std::string umlauts;
  for (int i = 0; i < 5000; ++i) umlauts += "\u00e4";
  const Cause cause = cause_of(1, Error(ErrorCode::io, umlauts).with_path(umlauts).with_hint(umlauts), 0);
  const std::string bytes = encode_cause(cause);
  EXPECT_LE(bytes.size(), kCauseBytesMax);
  const auto back = decode_cause(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_TRUE(back->error.message().ends_with("\u00e4..."));
  EXPECT_TRUE(back->error.path().ends_with("\u00e4..."));
}

TEST(Arguments, LimitsHold) {
  EXPECT_TRUE(check_arguments("plan.hash_2-x", 10, 10).ok());
  EXPECT_TRUE(check_arguments(std::string(kTagBytesMax, 'a'), 0, 0).ok());
  for (const std::string& tag :
       {std::string(), std::string("a/b"), std::string("a b"), std::string(kTagBytesMax + 1, 'a')})
    EXPECT_EQ(check_arguments(tag, 0, 10).error().code(), ErrorCode::invalid_argument) << tag;
  EXPECT_EQ(check_arguments("plan", 11, 10).error().code(), ErrorCode::too_large);
}

}  // namespace
}  // namespace infercluster::exchange
