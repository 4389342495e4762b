// SPDX-License-Identifier: Apache-2.0
#include "load/seal.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "checksum/crc32c.h"
#include "os/file.h"
#include "testing/temp_dir.h"

namespace infercluster::load {
namespace {

std::vector<std::byte> random_bytes(std::size_t count, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(generator() & 0xFF);
  return bytes;
}

Seal seal_of(std::span<const std::byte> bytes) {
  SealBuilder builder;
  builder.add(bytes);
  return builder.finish();
}

TEST(Seal, HoldsTheChecksumOfEachBlockAndOfTheWhole) {
  const auto bytes = random_bytes(2 * kSealBlockBytes + 100, 1);
  const Seal seal = seal_of(bytes);
  const std::span<const std::byte> all = bytes;
  ASSERT_EQ(seal.block_count(), 3U);
  EXPECT_EQ(seal.block_bytes(0), kSealBlockBytes);
  EXPECT_EQ(seal.block_bytes(2), 100U);
  EXPECT_EQ(seal.block_crc(1), checksum::crc32c(all.subspan(kSealBlockBytes, kSealBlockBytes)));
  EXPECT_EQ(seal.root(), checksum::crc32c(all));
  EXPECT_TRUE(seal.check_block(2, all.subspan(2 * kSealBlockBytes)));
  auto wrong = bytes;
  wrong.back() ^= std::byte{1};
  EXPECT_FALSE(seal.check_block(2, std::span(wrong).subspan(2 * kSealBlockBytes)));
}

TEST(Seal, IsTheSameHoweverTheBytesWereCut) {
  const auto bytes = random_bytes(300'000, 2);
  const Seal whole = seal_of(bytes);
  std::mt19937 generator(3);
  for (int round = 0; round < 20; ++round) {
    SealBuilder builder;
    for (std::span<const std::byte> rest = bytes; !rest.empty();) {
      const std::size_t count = std::min<std::size_t>(rest.size(), generator() % 100'000);
      builder.add(rest.first(count));
      rest = rest.subspan(count);
    }
    ASSERT_EQ(builder.finish(), whole) << "round " << round;
  }
}

TEST(Seal, SurvivesSerializing) {
  for (const std::size_t size :
       {0UL, 1UL, kSealBlockBytes - 1, kSealBlockBytes, kSealBlockBytes + 1, 5 * kSealBlockBytes}) {
    const Seal seal = seal_of(random_bytes(size, 4));
    const auto parsed = Seal::parse(seal.serialize());
    ASSERT_TRUE(parsed.ok()) << size << ": " << parsed.error().to_string();
    EXPECT_EQ(*parsed, seal);
  }
}

TEST(Seal, HasTheLayoutThatIsDocumented) {
  const auto bytes = seal_of(std::as_bytes(std::span(std::string_view("123456789")))).serialize();
  ASSERT_EQ(bytes.size(), 48U);
  const unsigned char expected[40] = {'I', 'C', 'S', 'E', 'A',  'L',  13,   10,   1, 0, 0, 0, 0, 0,
                                      1,   0,   9,   0,   0,    0,    0,    0,    0, 0, 1, 0, 0, 0,
                                      0,   0,   0,   0,   0x83, 0x92, 0x06, 0xE3, 0, 0, 0, 0};
  EXPECT_EQ(std::memcmp(bytes.data(), expected, sizeof expected), 0);
}

TEST(Seal, AnyFlippedBitIsNoticed) {
  const auto good = seal_of(random_bytes(3 * kSealBlockBytes, 5)).serialize();
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    auto bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    ASSERT_FALSE(Seal::parse(bad).ok()) << "bit " << bit;
  }
}

TEST(Seal, AnyOtherLengthIsRefused) {
  const auto good = seal_of(random_bytes(3 * kSealBlockBytes, 6)).serialize();
  for (std::size_t length = 0; length < good.size(); ++length) {
    ASSERT_FALSE(Seal::parse(std::span(good).first(length)).ok()) << length;
  }
  auto longer = good;
  longer.resize(good.size() + 4);
  EXPECT_FALSE(Seal::parse(longer).ok());
}

TEST(Seal, ANewerVersionIsRefusedByItsNumber) {
  auto bytes = seal_of(random_bytes(10, 7)).serialize();
  bytes[8] = std::byte{2};
  const auto parsed = Seal::parse(bytes);
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.error().code(), ErrorCode::unsupported);
  EXPECT_NE(parsed.error().message().find("version 2"), std::string::npos);
}

TEST(SealPath, LiesBesideTheFileOrInADirectoryOfItsOwn) {
  EXPECT_EQ(seal_path_of("/a/b.safetensors", ""), "/a/b.safetensors.icseal");
  EXPECT_EQ(seal_path_of("/a/b.safetensors", "/seals"), "/seals/b.safetensors.icseal");
  EXPECT_EQ(seal_path_of("b", "seals/"), "seals/b.icseal");
}

TEST(FindSeal, FindsItAndRefusesThatOfAnotherSize) {
  const testing::TempDir directory;
  const std::string path = directory.file("model.safetensors");
  const auto missing = find_seal(path, "", 1000);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), ErrorCode::not_found);

  const Seal seal = seal_of(random_bytes(1000, 8));
  ASSERT_TRUE(os::write_file_atomically(seal_path_of(path, ""), seal.serialize()).ok());
  const auto found = find_seal(path, "", 1000);
  ASSERT_TRUE(found.ok()) << found.error().to_string();
  EXPECT_EQ(*found, seal);

  for (const std::uint64_t size : {std::uint64_t{999}, std::uint64_t{0}, std::uint64_t{1} << 30}) {
    const auto other = find_seal(path, "", size);
    ASSERT_FALSE(other.ok());
    EXPECT_EQ(other.error().code(), ErrorCode::corrupt);
    EXPECT_EQ(other.error().path(), path);
  }
}

TEST(BlobName, IsReadFromWhereTheLinksLead) {
  const std::string sha256(64, 'a');
  const std::string sha1(40, '0');
  EXPECT_EQ(blob_name_of("/hub/models--o--n/blobs/" + sha256).kind, BlobName::Kind::sha256);
  EXPECT_EQ(blob_name_of("/hub/models--o--n/blobs/" + sha256).hex, sha256);
  EXPECT_EQ(blob_name_of("blobs/" + sha1).kind, BlobName::Kind::sha1);
  EXPECT_EQ(blob_name_of("/hub/blobs/" + std::string(63, 'a')).kind, BlobName::Kind::none);
  EXPECT_EQ(blob_name_of("/hub/blobs/" + std::string(64, 'g')).kind, BlobName::Kind::none);
  EXPECT_EQ(blob_name_of("/hub/notblobs/" + sha256).kind, BlobName::Kind::none);
  EXPECT_EQ(blob_name_of(sha256).kind, BlobName::Kind::none);
}

}  // namespace
}  // namespace infercluster::load
