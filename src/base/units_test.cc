// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include <gtest/gtest.h>

#include <cmath>

namespace infercluster {
namespace {

TEST(ParseBytes, SizesAreParsedExactly) {
  EXPECT_EQ(parse_bytes("0").value(), 0U);
  EXPECT_EQ(parse_bytes("1000000").value(), 1'000'000U);
  EXPECT_EQ(parse_bytes("2GiB").value(), 2 * kGiB);
  EXPECT_EQ(parse_bytes("64K").value(), 64 * kKiB);
  EXPECT_EQ(parse_bytes("1.5 MiB").value(), 3 * kMiB / 2);
  EXPECT_EQ(parse_bytes("3 GB").value(), 3'000'000'000U);
  EXPECT_EQ(parse_bytes("18446744073709551615").value(), UINT64_MAX);
  EXPECT_EQ(parse_bytes("9007199254740993").value(), 9007199254740993U);  // not a double
}

TEST(ParseBytes, WhatIsNoSizeIsRefusedWithAHint) {
  for (const char* text : {"", " 1", "-1", "+1", "1 parsec", "1e3", "0x10", "nan", "inf", "1 GiB ", "1..5 MiB",
                           ".5 GiB", "18446744073709551616", "18446744073709551616 TiB", "16777216 TiB"}) {
    const auto size = parse_bytes(text);
    ASSERT_FALSE(size) << text << " gave " << *size;
    EXPECT_EQ(size.error().code(), ErrorCode::invalid_argument);
    EXPECT_FALSE(size.error().hint().empty());
  }
}

TEST(FormatBytes, PicksTheUnit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(3 * kMiB / 2), "1.5 MiB");
  EXPECT_EQ(format_bytes(3 * kGiB / 2), "1.50 GiB");
}

TEST(FormatRate, PicksTheUnitAndMindsWhatIsNoRate) {
  EXPECT_EQ(format_rate(1.5 * static_cast<double>(kGiB)), "1.50 GiB/s");
  EXPECT_EQ(format_rate(static_cast<double>(kMiB)), "1.0 MiB/s");
  EXPECT_EQ(format_rate(0), "0 B/s");
  EXPECT_EQ(format_rate(-1), "0 B/s");
  EXPECT_EQ(format_rate(std::nan("")), "0 B/s");
}

TEST(Align, UpDownAndPowers) {
  EXPECT_EQ(align_down(4097, 4096), 4096U);
  EXPECT_EQ(align_up(4097, 4096), 8192U);
  EXPECT_EQ(align_up(4096, 4096), 4096U);
  EXPECT_EQ(align_up(0, 4096), 0U);
  EXPECT_EQ(align_up(UINT64_MAX - 4095, 4096), UINT64_MAX - 4095);
  EXPECT_TRUE(is_power_of_two(1));
  EXPECT_TRUE(is_power_of_two(std::uint64_t{1} << 63));
  EXPECT_FALSE(is_power_of_two(0));
  EXPECT_FALSE(is_power_of_two(6));
}

TEST(AlignDeathTest, UpBeyondTheLargestValueAborts) {
  EXPECT_DEATH((void)align_up(UINT64_MAX, 4096), "internal error");
}

}  // namespace
}  // namespace infercluster
