// SPDX-License-Identifier: Apache-2.0
#include "checksum/hmac.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace infercluster::checksum {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// RFC 4231, section 4.3 (test case 2).
TEST(Hmac, KnownAnswers) {
  const std::string_view key = "Jefe";
  const std::string_view message = "what do ya want for nothing?";
  EXPECT_EQ(hex(hmac(Sha2::sha256, bytes_of(key), bytes_of(message))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac(Sha2::sha384, bytes_of(key), bytes_of(message))),
            "af45d2e376484031617f78d2b58a6b1b9c7ef464f5a01b47e42ec3736322445e8e2240ca5e69e2c78b3239ecfab21649");
  EXPECT_EQ(hex(hmac(Sha2::sha512, bytes_of(key), bytes_of(message))),
            "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea2505549758bf75c05a994a6d034f65f8f0e6fd"
            "caeab1a34d4a6b4b636e070a38bce737");
}

// RFC 4231, section 4.7 (test case 6): a key that is longer than the block.
TEST(Hmac, LongKeyIsHashedFirst) {
  const std::string key(131, '\xaa');
  EXPECT_EQ(hex(hmac(Sha2::sha256, bytes_of(key), bytes_of("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Hmac, DigestsHaveTheSizesOfTheirNames) {
  EXPECT_EQ(digest_bytes(Sha2::sha256), 32U);
  EXPECT_EQ(digest_bytes(Sha2::sha384), 48U);
  EXPECT_EQ(digest_bytes(Sha2::sha512), 64U);
}

TEST(Secrets, AreEqualOnlyByEveryByteAndTheLength) {
  EXPECT_TRUE(equal_secrets(bytes_of("abcd"), bytes_of("abcd")));
  EXPECT_FALSE(equal_secrets(bytes_of("abcd"), bytes_of("abce")));
  EXPECT_FALSE(equal_secrets(bytes_of("abcd"), bytes_of("bbcd")));
  EXPECT_FALSE(equal_secrets(bytes_of("abcd"), bytes_of("abc")));
  EXPECT_TRUE(equal_secrets({}, {}));
}

TEST(Secrets, AreWiped) {
  std::string secret = "secret";
  wipe(std::as_writable_bytes(std::span(secret)));
  EXPECT_EQ(secret, std::string(6, '\0'));
}

}  // namespace
}  // namespace infercluster::checksum
