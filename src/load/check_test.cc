// SPDX-License-Identifier: Apache-2.0
#include "load/check.h"

#include <gtest/gtest.h>

#include <vector>

namespace infercluster::load {
namespace {

constexpr std::uint64_t kDataBegin = 100;

// Three tensors behind a header of 100 bytes: the first ends within block 0, the second within block 1.
safetensors::Header header_of(std::uint64_t file_size) {
  std::vector<safetensors::Tensor> tensors;
  tensors.push_back({"a", safetensors::Dtype::u8, {1000}, 0, 1000});
  tensors.push_back({"empty", safetensors::Dtype::u8, {0}, 1000, 1000});
  tensors.push_back({"b", safetensors::Dtype::u8, {90'000}, 1000, 91'000});
  tensors.push_back({"c", safetensors::Dtype::u8, {file_size - 91'100}, 91'000, file_size - kDataBegin});
  return {std::move(tensors), std::nullopt, kDataBegin, file_size};
}

struct File {
  std::vector<std::byte> bytes = std::vector<std::byte>(4 * kSealBlockBytes + 17, std::byte{7});
  safetensors::Header header = header_of(bytes.size());
  Seal seal = [this] {
    SealBuilder builder;
    builder.add(bytes);
    return builder.finish();
  }();

  std::optional<std::string> check(const std::string& sha256 = "") const {
    FileCheck check(&seal, sha256);
    for (std::span<const std::byte> rest = bytes; !rest.empty();) {
      const std::size_t count = std::min<std::size_t>(rest.size(), 50'000);
      check.add(rest.first(count));
      rest = rest.subspan(count);
    }
    return check.finish(header);
  }
};

TEST(ContentOf, NamesTheHeaderTheTensorsAndHowMany) {
  const auto header = header_of(200'000);
  EXPECT_EQ(content_of(header, 0, 65'536), "the header");
  EXPECT_EQ(content_of(header, kDataBegin, kDataBegin + 1), "tensor \"a\"");
  EXPECT_EQ(content_of(header, kDataBegin + 1000, kDataBegin + 1001), "tensor \"b\"");
  EXPECT_EQ(content_of(header, kDataBegin + 999, kDataBegin + 1001), "tensor \"a\" and 2 more");
  EXPECT_EQ(content_of(header, kDataBegin + 90'999, 200'000), "tensor \"b\" and 1 more");
  EXPECT_EQ(content_of(header, 200'000, 200'001), "bytes behind the last tensor");
}

TEST(FileCheck, SealedBytesAreGood) {
  EXPECT_EQ(File().check(), std::nullopt);
}

TEST(FileCheck, NamesTheFirstBadBlockAndCountsThem) {
  File file;
  file.bytes[3 * kSealBlockBytes + 5] ^= std::byte{1};
  file.bytes.back() ^= std::byte{1};
  EXPECT_EQ(file.check(), "tensor \"c\" at offset 196608: bytes differ from the seal in 2 of 5 blocks of 64 KiB");
}

TEST(FileCheck, AShorterOrLongerFileIsNotGood) {
  File file;
  file.bytes.pop_back();
  EXPECT_TRUE(file.check());
  file.bytes.resize(file.bytes.size() + 2 * kSealBlockBytes);
  EXPECT_TRUE(file.check());
}

TEST(FileCheck, TheShaOfTheWholeIsChecked) {
  const File file;
  checksum::Sha256 digest;
  digest.add(file.bytes);
  const std::string right = digest.finish_hex();
  EXPECT_EQ(file.check(right), std::nullopt);
  const auto wrong = file.check(std::string(64, '0'));
  ASSERT_TRUE(wrong);
  EXPECT_NE(wrong->find(right), std::string::npos);
}

}  // namespace
}  // namespace infercluster::load
