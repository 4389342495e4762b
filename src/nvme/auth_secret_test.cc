// SPDX-License-Identifier: Apache-2.0
#include "nvme/auth_secret.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "nvme/auth_test_helpers.h"

namespace infercluster::nvme {
namespace {

constexpr const char* kHostNqn = "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6";

// By Python: hmac.new(bytes(range(1, n + 1)), (nqn + "NVMe-over-Fabrics").encode(), "sha256").hexdigest().
TEST(Secret, IsTransformedByItsHashAndTheNqn) {
  EXPECT_EQ(hex(secret(kHostSecret00).transformed(kHostNqn)),
            "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20");
  EXPECT_EQ(hex(secret(kHostSecret01).transformed(kHostNqn)),
            "233187703198e5c0c64e4d58fb7eefe51bea04cfe8105f95eec06c4990eb9542");
  EXPECT_EQ(hex(secret(kHostSecret02).transformed(kHostNqn)),
            "99b082e740c41f640e312e9ed8b34e2355bcab19cab862c0b532c51825b5e278abd2854401e602f15dbe866ec6c88477");
  EXPECT_EQ(hex(secret(kHostSecret03).transformed(kHostNqn)),
            "f40dc29a80f8ffee50d9f9f5a5d337ac70f43f32afbbfc3de8275603cfbd19b5fcab98fe1fc33e4b38023f1b367863681ef626d6"
            "2bb3a34ce5d7564087be2d1d");
}

// By nvme gen-dhchap-key of nvme-cli 2.3, for each hash.
TEST(Secret, OfNvmeCliIsRead) {
  EXPECT_EQ(secret("DHHC-1:00:nUU/TfW+7l01tSf+wnC2v9j10oVSzfPe4di1O6Ljs/gcNkAc:").bytes(), 32U);
  EXPECT_EQ(secret("DHHC-1:01:qU41Rc2SaBJvrXKtZgnpGaG/XKAVAbzXp1fZlFmo8U0eYxiR:").bytes(), 32U);
  EXPECT_EQ(secret("DHHC-1:02:nbWc5xP1q9Ob+kdVrWf94d7ENJL6KjiTLOeuuWev/lkZJY0hWlwlSz0fRoo7P4ioEhQDMQ==:").bytes(), 48U);
  EXPECT_EQ(secret("DHHC-1:03:RfN9+tzhcVVXO9Po6Lnj+cvNpt24se43D5lWzMFX+B2XPGld1I3K5gUvXX5fS+60QShvnsSAznuq"
                   "+twHQbnunHtKo2E=:\n")
                .bytes(),
            64U);
}

TEST(Secret, ThatIsMalformedIsRefusedWithoutItsText) {
  const std::string good = kHostSecret02;
  const std::string key = good.substr(10, good.size() - 11);
  const std::array malformed{
      std::string(),
      std::string(" \n"),
      std::string("DHHC-1:"),
      std::string("DHHC-1:01"),
      std::string("DHHC-1:01:"),
      std::string("DHHC-1:01::"),
      std::string("DHHC-2:01:") + key + ":",
      std::string("DHHC-1:04:") + key + ":",
      std::string("DHHC-1:1:") + key + ":",
      std::string("DHHC-1:001:") + key + ":",
      std::string("DHHC-1:02:") + key,                                            // no colon
      std::string("DHHC-1:02:") + key.substr(4) + ":",                            // a key of 45 bytes
      std::string("DHHC-1:02:") + key.substr(0, key.size() - 4) + ":",            // cut
      std::string("DHHC-1:02:") + key.substr(0, key.size() - 1) + ":",            // less padding
      std::string("DHHC-1:02:") + key.substr(0, key.size() - 4) + "c===:",        // more padding
      std::string("DHHC-1:02:") + key.substr(0, key.size() - 3) + "x==:",         // bits of no byte
      std::string("DHHC-1:02:") + "B" + key.substr(1) + ":",                      // another first byte
      std::string("DHHC-1:02:") + key.substr(0, 8) + "-" + key.substr(9) + ":",   // no base64
      std::string("DHHC-1:02:") + key.substr(0, 8) + "=" + key.substr(9) + ":",   // padding within
      std::string("DHHC-1:02:") + key.substr(0, 8) + "\n" + key.substr(9) + ":",  // white space within
      std::string("DHHC-1:02:") + std::string(100'000, 'A') + ":",
  };
  ASSERT_TRUE(Secret::parse(good).ok());
  for (const std::string& text : malformed) {
    const Result<Secret> parsed = Secret::parse(text);
    ASSERT_FALSE(parsed.ok()) << text.substr(0, 100);
    EXPECT_EQ(parsed.error().code(), ErrorCode::invalid_argument);
    EXPECT_FALSE(parsed.error().hint().empty());
    EXPECT_EQ(parsed.error().to_string().find(key.substr(4, 8)), std::string::npos);
  }
}

// One wrong character anywhere is noticed: that is what the checksum is for.
TEST(Secret, EveryOtherCharacterIsNoticed) {
  const std::string good = kHostSecret03;
  for (std::size_t i = 10; i + 1 < good.size(); ++i) {
    std::string other = good;
    other[i] = other[i] == 'A' ? 'B' : 'A';
    EXPECT_FALSE(Secret::parse(other).ok()) << i;
  }
}

}  // namespace
}  // namespace infercluster::nvme
