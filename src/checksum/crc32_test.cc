// SPDX-License-Identifier: Apache-2.0
#include "checksum/crc32.h"

#include <gtest/gtest.h>

#include <string_view>

namespace infercluster::checksum {
namespace {

TEST(Crc32, KnownAnswers) {
  const auto crc = [](std::string_view text) { return crc32(std::as_bytes(std::span(text))); };
  EXPECT_EQ(crc(""), 0U);
  EXPECT_EQ(crc("123456789"), 0xCBF43926U);
  EXPECT_EQ(crc("The quick brown fox jumps over the lazy dog"), 0x414FA339U);
}

}  // namespace
}  // namespace infercluster::checksum
