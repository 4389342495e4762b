// SPDX-License-Identifier: Apache-2.0
#include "checksum/crc32c.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <span>
#include <string_view>
#include <vector>

namespace infercluster::checksum {
namespace {

std::vector<std::byte> random_bytes(std::size_t count, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(generator() & 0xFF);
  return bytes;
}

// By the definition, one bit at a time.
std::uint32_t slow_crc32c(std::span<const std::byte> bytes) {
  std::uint32_t state = ~0U;
  for (const std::byte byte : bytes) {
    state ^= static_cast<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? 0x82F63B78U : 0U);
  }
  return ~state;
}

TEST(Crc32c, CheckValue) {
  EXPECT_EQ(crc32c(std::as_bytes(std::span(std::string_view("123456789")))), 0xE3069283U);
  EXPECT_EQ(crc32c({}), 0U);
}

// RFC 3720, appendix B.4. The RFC lists the digest's bytes in wire order; here it is the number.
TEST(Crc32c, VectorsOfRfc3720) {
  std::array<std::uint8_t, 32> data{};
  EXPECT_EQ(crc32c(std::as_bytes(std::span(data))), 0x8A9136AAU);
  data.fill(0xFF);
  EXPECT_EQ(crc32c(std::as_bytes(std::span(data))), 0x62A8AB43U);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint8_t>(i);
  EXPECT_EQ(crc32c(std::as_bytes(std::span(data))), 0x46DD794EU);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint8_t>(31 - i);
  EXPECT_EQ(crc32c(std::as_bytes(std::span(data))), 0x113FDB5CU);
  const std::array<std::uint8_t, 48> scsi_read_10{
      0x01, 0xC0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
      0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x18,
      0x28, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
  EXPECT_EQ(crc32c(std::as_bytes(std::span(scsi_read_10))), 0xD9963A56U);
}

TEST(Crc32c, EqualsTheDefinitionAtEveryLengthAndAlignment) {
  const std::vector<std::byte> bytes = random_bytes(700, 1);
  for (std::size_t length = 0; length <= 600; ++length) {
    const std::span<const std::byte> part = std::span(bytes).subspan(length % 17, length);
    ASSERT_EQ(crc32c(part), slow_crc32c(part)) << "length " << length;
  }
}

TEST(Crc32c, PiecesGiveTheSameAsTheWhole) {
  const std::vector<std::byte> bytes = random_bytes(100'000, 2);
  const std::uint32_t whole = crc32c(bytes);
  std::mt19937 generator(3);
  for (int round = 0; round < 50; ++round) {
    std::uint32_t crc = 0;
    for (std::span<const std::byte> rest = bytes; !rest.empty();) {
      const std::size_t count = std::min<std::size_t>(rest.size(), generator() % 5000);
      crc = crc32c(rest.first(count), crc);
      rest = rest.subspan(count);
    }
    ASSERT_EQ(crc, whole) << "round " << round;
  }
}

TEST(Crc32cCombine, EqualsTheDirectChecksum) {
  const std::vector<std::byte> bytes = random_bytes(70'000, 4);
  const std::span<const std::byte> all = bytes;
  for (const std::size_t total : {0UL, 1UL, 2UL, 3UL, 64UL, 511UL, 4096UL, 65536UL, 65537UL, 70'000UL}) {
    for (const std::size_t split : {0UL, 1UL, 7UL, 63UL, 510UL, 4095UL, 65535UL, 65536UL, 70'000UL}) {
      if (split > total) continue;
      const std::uint32_t a = crc32c(all.first(split));
      const std::uint32_t b = crc32c(all.subspan(split, total - split));
      ASSERT_EQ(crc32c_combine(a, b, total - split), crc32c(all.first(total))) << total << " split at " << split;
    }
  }
}

TEST(Crc32cCombine, AnEmptySecondPartChangesNothing) {
  EXPECT_EQ(crc32c_combine(0x12345678, 0, 0), 0x12345678U);
  EXPECT_EQ(crc32c_combine(0, 0x12345678, UINT64_MAX), 0x12345678U);  // an empty first part likewise
}

TEST(Crc32cCombine, LengthsBeyond32BitsFollowFromShorterOnes) {
  const std::uint32_t a = crc32c(random_bytes(33, 5));
  // CRC of 2^k zero bytes by doubling, checked directly while that is cheap.
  std::vector<std::byte> zeros(1 << 16);
  std::uint32_t zeros_crc = crc32c(std::span(zeros).first(1));
  for (unsigned k = 0; k < 40; ++k) {
    const std::uint64_t length = std::uint64_t{1} << k;
    if (k <= 16) {
      ASSERT_EQ(zeros_crc, crc32c(std::span(zeros).first(length))) << k;
      ASSERT_EQ(crc32c_combine(a, zeros_crc, length), crc32c(std::span(zeros).first(length), a)) << k;
    }
    // Appending a length at once, and in two unequal steps.
    const std::uint32_t doubled = crc32c_combine(zeros_crc, zeros_crc, length);
    const std::uint32_t at_once = crc32c_combine(a, doubled, 2 * length);
    const std::uint32_t in_steps = crc32c_combine(crc32c_combine(a, zeros_crc, length), zeros_crc, length);
    ASSERT_EQ(at_once, in_steps) << k;
    zeros_crc = doubled;
  }
}

// 4 GiB and 3 bytes of zeros, really run through the checksum in 1 MiB pieces, against one combine.
TEST(Crc32cCombine, MoreThan4GiBEqualsTheDirectChecksum) {
  const std::vector<std::byte> head = random_bytes(100, 6);
  const std::vector<std::byte> zeros(1 << 20);
  const std::uint64_t length = (std::uint64_t{1} << 32) + 3;
  std::uint32_t direct = crc32c(head);
  std::uint32_t tail = 0;
  for (std::uint64_t done = 0; done < length;) {
    const std::size_t count = static_cast<std::size_t>(std::min<std::uint64_t>(zeros.size(), length - done));
    direct = crc32c(std::span(zeros).first(count), direct);
    tail = crc32c(std::span(zeros).first(count), tail);
    done += count;
  }
  EXPECT_EQ(crc32c_combine(crc32c(head), tail, length), direct);
}

}  // namespace
}  // namespace infercluster::checksum
