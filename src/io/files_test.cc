// SPDX-License-Identifier: Apache-2.0
#include "io/files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "testing/temp_dir.h"

namespace infercluster::io {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

class Files : public ::testing::Test {
 protected:
  void SetUp() override { root_ = *calls_.open_directory(temp_.path().string()); }

  void write(const Directory& directory, const std::string& name, std::string_view text) {
    OutputFile file = *calls_.create(directory, name);
    ASSERT_TRUE(write_fully(calls_, file, bytes_of(text), 0).ok());
    ASSERT_TRUE(calls_.sync(file).ok());
    ASSERT_TRUE(calls_.close(std::move(file)).ok());
  }

  testing::TempDir temp_;
  FileCalls& calls_ = system_files();
  Directory root_;
};

TEST_F(Files, WhatWasWrittenIsListedReadAndRemoved) {
  ASSERT_TRUE(calls_.make_directory(root_, "d").ok());
  const Directory inner = *calls_.open_directory_in(root_, "d");
  write(inner, "f", "hello");
  EXPECT_EQ(*calls_.size_of(inner, "f"), 5U);
  EXPECT_EQ(*calls_.read_small(inner, "f", 5), "hello");
  EXPECT_EQ(calls_.read_small(inner, "f", 4).error().code(), ErrorCode::too_large);
  ASSERT_TRUE(calls_.link(inner, "f", "g").ok());
  auto entries = *calls_.list(inner);
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.name < b.name; });
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].name, "f");
  EXPECT_EQ(entries[1].name, "g");
  EXPECT_FALSE(entries[0].is_directory);
  EXPECT_TRUE((*calls_.list(root_))[0].is_directory);
  EXPECT_EQ(calls_.remove_directory(root_, "d").error().system_errno(), ENOTEMPTY);
  ASSERT_TRUE(calls_.remove(inner, "f").ok());
  ASSERT_TRUE(calls_.remove(inner, "g").ok());
  ASSERT_TRUE(calls_.sync_directory(inner).ok());
  ASSERT_TRUE(calls_.remove_directory(root_, "d").ok());
  EXPECT_EQ(calls_.open_directory_in(root_, "d").error().code(), ErrorCode::not_found);
}

TEST_F(Files, NothingIsEverOverwritten) {
  write(root_, "f", "old");
  write(root_, "g", "new");
  EXPECT_EQ(calls_.create(root_, "f").error().system_errno(), EEXIST);
  EXPECT_EQ(calls_.link(root_, "g", "f").error().system_errno(), EEXIST);
  ASSERT_TRUE(calls_.make_directory(root_, "d").ok());
  EXPECT_EQ(calls_.make_directory(root_, "d").error().system_errno(), EEXIST);
  EXPECT_EQ(*calls_.read_small(root_, "f", 10), "old");
}

TEST_F(Files, ADirectoryIsKnownAfterItWasRenamedAway) {
  ASSERT_TRUE(calls_.make_directory(root_, "d").ok());
  const Directory inner = *calls_.open_directory_in(root_, "d");
  EXPECT_TRUE(*calls_.is_entry(root_, "d", inner));
  ASSERT_TRUE(calls_.rename(root_, "d", "e").ok());
  EXPECT_FALSE(*calls_.is_entry(root_, "d", inner));
  ASSERT_TRUE(calls_.make_directory(root_, "d").ok());
  EXPECT_FALSE(*calls_.is_entry(root_, "d", inner));
  write(inner, "f", "x");  // goes to where the directory is now
  EXPECT_EQ(*calls_.read_small(*calls_.open_directory_in(root_, "e"), "f", 10), "x");
}

TEST_F(Files, ErrorsNameThePath) {
  const auto missing = calls_.read_small(root_, "nothing", 10);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().path(), temp_.file("nothing"));
  EXPECT_EQ(missing.error().system_errno(), ENOENT);
}

TEST_F(Files, ASizeCutsWhatWasWrittenForAlignmentOnly) {
  OutputFile file = *calls_.create(root_, "f");
  ASSERT_TRUE(calls_.reserve(file, 100).ok());
  ASSERT_TRUE(write_fully(calls_, file, bytes_of("0123456789"), 0).ok());
  ASSERT_TRUE(calls_.set_size(file, 7).ok());
  ASSERT_TRUE(calls_.close(std::move(file)).ok());
  EXPECT_EQ(*calls_.read_small(root_, "f", 100), "0123456");
}

}  // namespace
}  // namespace infercluster::io
