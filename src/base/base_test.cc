// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/units.h"

namespace infercluster {
namespace {

TEST(Units, SizesAreParsedExactly) {
  EXPECT_EQ(parse_bytes("2GiB").value(), 2 * kGiB);
  EXPECT_EQ(parse_bytes("1.5 MiB").value(), 3 * kMiB / 2);
  EXPECT_EQ(parse_bytes("18446744073709551615").value(), UINT64_MAX);
  EXPECT_FALSE(parse_bytes("-1"));
  EXPECT_FALSE(parse_bytes("1 parsec"));
  EXPECT_FALSE(parse_bytes("18446744073709551616 TiB"));
}

TEST(Error, NamesCannotBreakTheLine) {
  const Error error = Error(ErrorCode::corrupt, "bad").with_path("a\nb").with_tensor("x\x1b[2J\xC3\xA9").with_hint("Do");
  EXPECT_EQ(error.to_string(), "a\\x0ab: tensor \"x\\x1b[2J\xC3\xA9\": bad. Do");
}

}  // namespace
}  // namespace infercluster
