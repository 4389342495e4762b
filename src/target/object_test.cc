// SPDX-License-Identifier: Apache-2.0
#include "target/object.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "checksum/crc32c.h"
#include "testing/pattern.h"
#include "testing/temp_dir.h"

namespace infercluster::target {
namespace {

TEST(Object, HasTheChecksumOfEachBlockWithItsPadding) {
  const testing::TempDir directory;
  const std::string path = directory.file("object");
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{4095}, std::size_t{4096}, std::size_t{4097}, std::size_t{(1 << 20) + 5}}) {
    std::vector<char> bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 31 + i / 4096);
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(size));
    const Result<std::shared_ptr<const Object>> object = Object::open(path);
    ASSERT_TRUE(object.ok()) << object.error().to_string();
    EXPECT_EQ((*object)->size(), size);
    ASSERT_EQ((*object)->blocks(), (size + kBlockBytes - 1) / kBlockBytes);
    bytes.resize((*object)->blocks() * kBlockBytes);
    for (std::uint64_t block = 0; block < (*object)->blocks(); ++block) {
      EXPECT_EQ((*object)->crc(block),
                checksum::crc32c(std::as_bytes(std::span(bytes)).subspan(block * kBlockBytes, kBlockBytes)))
          << size;
    }
  }
}

TEST(Object, WhatCannotBeOneIsRefused) {
  const testing::TempDir directory;
  EXPECT_EQ(Object::open(directory.file("none")).error().code(), ErrorCode::not_found);
  EXPECT_EQ(Object::open(directory.path().string()).error().code(), ErrorCode::invalid_argument);
  const std::string empty = directory.file("empty");
  std::ofstream(empty).flush();
  EXPECT_EQ(Object::open(empty).error().code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace infercluster::target
