// SPDX-License-Identifier: Apache-2.0
#include "checksum/xxh3.h"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <string_view>

namespace infercluster::checksum {
namespace {

std::uint64_t hash_of(std::string_view text) {
  return xxh3(std::as_bytes(std::span(text)));
}

TEST(Xxh3, KnownValues) {
  // XXH3_64bits of nothing, by the xxHash specification's reference implementation.
  EXPECT_EQ(hash_of(""), 0x2D06800538D394C2ULL);
}

TEST(Xxh3, EveryLengthClassTellsOneChangedByte) {
  for (const std::size_t length : {1UL, 3UL, 8UL, 16UL, 17UL, 128UL, 129UL, 240UL, 241UL, 1024UL, 100'000UL}) {
    std::string text(length, 'x');
    const std::uint64_t before = hash_of(text);
    EXPECT_EQ(hash_of(std::string(length, 'x')), before);
    text[length / 2] = 'y';
    EXPECT_NE(hash_of(text), before) << length;
  }
}

}  // namespace
}  // namespace infercluster::checksum
