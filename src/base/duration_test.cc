// SPDX-License-Identifier: Apache-2.0
#include "base/duration.h"

#include <gtest/gtest.h>

#include <string>

namespace infercluster {
namespace {

using std::chrono::nanoseconds;

TEST(Duration, IsReadWithItsUnit) {
  EXPECT_EQ(parse_duration("20ms").value(), std::chrono::milliseconds(20));
  EXPECT_EQ(parse_duration("1.5 s").value(), std::chrono::milliseconds(1500));
  EXPECT_EQ(parse_duration("500us").value(), std::chrono::microseconds(500));
  EXPECT_EQ(parse_duration("7ns").value(), nanoseconds(7));
  EXPECT_EQ(parse_duration("2min").value(), std::chrono::minutes(2));
  EXPECT_EQ(parse_duration("1h").value(), std::chrono::hours(1));
  EXPECT_EQ(parse_duration("0s").value(), nanoseconds(0));
}

TEST(Duration, WhatIsNoneIsRefusedWithWhatToWrite) {
  for (const char* text : {"", "20", "ms", "-1s", "+1s", " 1s", "1 fortnight", "1e400s", "400000000h", "nan", "1s "}) {
    const auto duration = parse_duration(text);
    ASSERT_FALSE(duration.ok()) << text;
    EXPECT_EQ(duration.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(duration.error().to_string().find("ms"), std::string::npos) << duration.error().to_string();
  }
}

}  // namespace
}  // namespace infercluster
