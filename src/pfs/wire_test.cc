// SPDX-License-Identifier: Apache-2.0
#include "pfs/wire.h"

#include <gtest/gtest.h>

namespace infercluster::pfs {
namespace {

std::string bytes_of(std::initializer_list<int> values) {
  std::string bytes;
  for (const int value : values) bytes += static_cast<char>(value);
  return bytes;
}

// Little-endian machines only, as all that we build for.
const std::string& v1() {
  static const std::string bytes =
      bytes_of({0xD0, 0x0B, 0xD1, 0x0B,                                      // magic
                1,    0,    0,    0,                                         // pattern: RAID0
                0,    0,    0,    0,    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  // object id: the server's
                0,    0,    0x40, 0,                                         // 4 MiB
                8,    0,                                                     // stripes
                0xFF, 0xFF});                                                // first target: any
  return bytes;
}

TEST(LustreWire, HeaderIsExact) {
  EXPECT_EQ(encode_lustre({.stripe_bytes = 4 << 20, .stripe_count = 8, .pool = ""}), v1());
}

TEST(LustreWire, PoolMakesItVersionThree) {
  std::string expected = v1();
  expected[2] = static_cast<char>(0xD3);
  expected += std::string("flash") + std::string(11, '\0');
  const std::string bytes = encode_lustre({.stripe_bytes = 4 << 20, .stripe_count = 8, .pool = "flash"});
  EXPECT_EQ(bytes, expected);
  EXPECT_EQ(bytes.size(), 48U);
}

TEST(LustreWire, ReadsWhatAFileHas) {
  std::string bytes = v1() + std::string(8 * 24, 'x');  // the objects of 8 stripes behind the header
  const auto plain = decode_lustre(bytes);
  ASSERT_TRUE(plain.ok());
  ASSERT_EQ(plain->size(), 1U);
  EXPECT_EQ((*plain)[0].stripes.stripe_bytes, 4U << 20);
  EXPECT_EQ((*plain)[0].stripes.stripe_count, 8);
  EXPECT_EQ((*plain)[0].end, ~0ULL);
  const auto pooled =
      decode_lustre(encode_lustre({.stripe_bytes = 65536, .stripe_count = 2, .pool = "fifteen-bytes-x"}));
  ASSERT_TRUE(pooled.ok());
  EXPECT_EQ((*pooled)[0].stripes.pool, "fifteen-bytes-x");
}

// A progressive layout of two components: [0, 64 MiB) on 1 stripe of 1 MiB, the rest on 4 of 4 MiB.
std::string composite() {
  std::string header = bytes_of({0xD0, 0x0B, 0xD6, 0x0B});
  header += std::string(10, '\0') + bytes_of({2, 0}) + std::string(16, '\0');
  const auto entry = [](std::uint64_t start, std::uint64_t end, std::uint32_t offset) {
    std::string bytes(48, '\0');
    const std::uint32_t size = 32;
    bytes.replace(8, 8, reinterpret_cast<const char*>(&start), 8);
    bytes.replace(16, 8, reinterpret_cast<const char*>(&end), 8);
    bytes.replace(24, 4, reinterpret_cast<const char*>(&offset), 4);
    bytes.replace(28, 4, reinterpret_cast<const char*>(&size), 4);
    return bytes;
  };
  return header + entry(0, 64 << 20, 128) + entry(64 << 20, ~0ULL, 160) +
         encode_lustre({.stripe_bytes = 1 << 20, .stripe_count = 1, .pool = ""}) +
         encode_lustre({.stripe_bytes = 4 << 20, .stripe_count = 4, .pool = ""});
}

TEST(LustreWire, ReadsProgressiveLayouts) {
  const auto components = decode_lustre(composite());
  ASSERT_TRUE(components.ok()) << components.error().to_string();
  ASSERT_EQ(components->size(), 2U);
  EXPECT_EQ((*components)[0].end, 64U << 20);
  EXPECT_EQ((*components)[0].stripes.stripe_count, 1);
  EXPECT_EQ((*components)[1].start, 64U << 20);
  EXPECT_EQ((*components)[1].end, ~0ULL);
  EXPECT_EQ((*components)[1].stripes.stripe_bytes, 4U << 20);
}

TEST(LustreWire, EveryTruncationAndWildOffsetIsRefused) {
  for (const std::string& whole :
       {v1(), composite(), encode_lustre({.stripe_bytes = 65536, .stripe_count = 1, .pool = "p"})})
    for (std::size_t size = 0; size < whole.size(); ++size) {
      EXPECT_EQ(decode_lustre(whole.substr(0, size)).error().code(), ErrorCode::corrupt) << size;
    }
  std::string wild = composite();
  wild.replace(32 + 24, 4, "\xFF\xFF\xFF\xFF");
  EXPECT_EQ(decode_lustre(wild).error().code(), ErrorCode::corrupt);
  wild = composite();
  wild.replace(32 + 28, 4, "\xFF\xFF\xFF\xFF");
  EXPECT_EQ(decode_lustre(wild).error().code(), ErrorCode::corrupt);
  wild = composite();
  wild.replace(14, 2, "\xFF\xFF");
  EXPECT_EQ(decode_lustre(wild).error().code(), ErrorCode::corrupt);
  std::string foreign = v1();
  foreign[2] = static_cast<char>(0xD7);
  EXPECT_EQ(decode_lustre(foreign).error().code(), ErrorCode::unsupported);
}

TEST(GpfsWire, WriteHintIsExact) {
  const std::string expected = bytes_of({48,   0, 0, 0,                   // totalLength
                                         1,    0, 0, 0,                   // fcntlVersion
                                         0,    0, 0, 0,    0, 0, 0, 0,    // errorOffset, reserved
                                         32,   0, 0, 0,                   // structLen
                                         0xE9, 3, 0, 0,                   // 1001: GPFS_ACCESS_RANGE
                                         0,    0, 0, 0,    0, 0, 0, 0,    // start
                                         0,    0, 0, 0x40, 0, 0, 0, 0,    // length: 1 GiB
                                         1,    0, 0, 0,    0, 0, 0, 0});  // isWrite, padding
  EXPECT_EQ(encode_gpfs_write_hint(1ULL << 30), expected);
}

}  // namespace
}  // namespace infercluster::pfs
