// SPDX-License-Identifier: Apache-2.0
// A directory as a store, and what shared file systems do to it.
#include "exchange/directory_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <latch>

#include "exchange/exchange_test_helpers.h"
#include "testing/temp_dir.h"

namespace infercluster::exchange {
namespace {

using namespace std::chrono_literals;

constexpr auto kAmple = 60s;

Error errno_error(int code, const std::string& path) {
  return Error::from_errno(code, "made to fail").with_path(path);
}

// This client believes for a while that what others make is absent (cases.md P02: attribute caching), until it has
// listed the directory `listings` times.
class Blind final : public SharedFiles {
 public:
  explicit Blind(int listings) : listings_(listings) {}
  Result<std::string> read(const std::string& path, std::uint64_t limit) override {
    if (listings_ > 0 && path.find("/hello/") == std::string::npos) return errno_error(ENOENT, path);
    return SharedFiles::read(path, limit);
  }
  Status create(const std::string& path, std::string_view bytes) override {
    return listings_ > 0 && ++creates_ % 2 == 1 ? errno_error(creates_ % 4 == 1 ? ENOENT : ESTALE, path)
                                                : SharedFiles::create(path, bytes);
  }
  Result<std::vector<std::string>> list(const std::string& path) override {
    --listings_;
    return SharedFiles::list(path);
  }

 private:
  std::atomic<int> listings_;
  std::atomic<int> creates_{0};
};

class DirectoryStoreTest : public ::testing::Test {
 protected:
  DirectoryStore store(std::shared_ptr<SharedFiles> files = std::make_shared<SharedFiles>()) {
    return DirectoryStore(directory_.file("job"), 2, std::move(files));
  }
  std::size_t files_named(const std::string& part) const {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path()))
      if (entry.path().string().find(part) != std::string::npos) ++count;
    return count;
  }
  testing::TempDir directory_;
};

TEST_F(DirectoryStoreTest, ValuesComeBackAndAreReplaced) {
  auto files = store();
  const std::string value("a\0b\nc", 5);
  ASSERT_TRUE(files.set("j/in/x", value, deadline_in(1s)).ok());
  EXPECT_EQ(**files.get("j/in/x", deadline_in(1s)), value);
  ASSERT_TRUE(files.set("j/in/x", "", deadline_in(1s)).ok());
  EXPECT_EQ(**files.get("j/in/x", deadline_in(1s)), "");
  files.erase("j/in/x");
  EXPECT_FALSE(files.get("j/in/x", deadline_in(0s))->has_value());
}

TEST_F(DirectoryStoreTest, TheFirstOfManyThreadsWins) {
  for (int run = 0; run < 20; ++run) {
    std::vector<std::string> seen(6);
    std::latch start(6);
    run_ranks(ranks_of(6), [&](int rank) {
      auto files = store();
      start.arrive_and_wait();
      const auto won = files.set_if_absent("j/v/" + std::to_string(run), std::to_string(rank), deadline_in(kAmple));
      ASSERT_TRUE(won.ok()) << won.error().to_string();
      seen[static_cast<std::size_t>(rank)] = *won;
    });
    EXPECT_EQ(std::ranges::count(seen, seen[0]), 6);
  }
  EXPECT_EQ(files_named(".tmp"), 0U);
}

TEST_F(DirectoryStoreTest, APartOfAFileIsNotThereYet) {
  auto files = store();
  ASSERT_TRUE(files.set("x", "0123456789", deadline_in(1s)).ok());
  const std::string path = directory_.file("job/x");
  const auto size = std::filesystem::file_size(path);
  for (std::uintmax_t cut = 0; cut < size; ++cut) {
    std::filesystem::resize_file(path, cut);
    EXPECT_FALSE(files.get("x", deadline_in(0s))->has_value()) << cut;
    ASSERT_TRUE(files.set("x", "0123456789", deadline_in(1s)).ok());
  }
  std::filesystem::resize_file(path, size - 1);
  std::filesystem::resize_file(path, size);  // the last byte is a zero now
  EXPECT_FALSE(files.get("x", deadline_in(0s))->has_value());
}

TEST_F(DirectoryStoreTest, WhatCannotHealIsAnErrorAtOnce) {
  directory_.write("job/x/inside", "");
  auto files = store();
  const auto start = steady_clock().now();
  EXPECT_EQ(files.get("x", deadline_in(kAmple)).error().system_errno(), EISDIR);
  EXPECT_FALSE(files.set("x", "1", deadline_in(kAmple)).ok());
  EXPECT_LT(steady_clock().now() - start, kAmple / 4);
}

TEST_F(DirectoryStoreTest, AMissingParentIsAnErrorAtTheDeadline) {
  DirectoryStore files(directory_.file("no/such/job"), 2, std::make_shared<SharedFiles>());
  const Status status = files.set("x", "1", deadline_in(100ms));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::not_found);
  EXPECT_EQ(status.error().path(), directory_.file("no/such/job"));
}

TEST_F(DirectoryStoreTest, ALostReplyToLinkIsSettledByTheContents) {
  class Loses final : public SharedFiles {
   public:
    explicit Loses(int code) : code_(code) {}
    Status link(const std::string& from, const std::string& to) override {
      (void)SharedFiles::link(from, to);
      return errno_error(code_, to);
    }

   private:
    const int code_;
  };
  for (const int code : {EEXIST, EIO, ENOENT}) {
    auto files = store(std::make_shared<Loses>(code));
    EXPECT_EQ(*files.set_if_absent("v" + std::to_string(code), "mine", deadline_in(kAmple)), "mine");
    EXPECT_EQ(*files.set_if_absent("v" + std::to_string(code), "other", deadline_in(kAmple)), "mine");
  }
}

TEST_F(DirectoryStoreTest, WithoutHardLinksItSaysWhatToMount) {
  class NoLinks final : public SharedFiles {
   public:
    Status link(const std::string&, const std::string& to) override { return errno_error(EPERM, to); }
  };
  auto files = store(std::make_shared<NoLinks>());
  const auto result = files.set_if_absent("v", "x", deadline_in(kAmple));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), ErrorCode::unsupported);
  EXPECT_NE(result.error().hint().find("hard links"), std::string::npos);
  EXPECT_EQ(files_named(".tmp"), 0U);
}

TEST_F(DirectoryStoreTest, AnAbsentBeliefIsDispelledByListing) {
  auto sees = store();
  ASSERT_TRUE(sees.set("j/in/x", "1", deadline_in(1s)).ok());
  auto blind = store(std::make_shared<Blind>(8));
  EXPECT_EQ(**blind.get("j/in/x", deadline_in(kAmple)), "1");
}

TEST_F(DirectoryStoreTest, EraseAllLeavesNothingAndEmptyFoldersGoOnce) {
  auto files = store();
  ASSERT_TRUE(files.set("hello/0", "1", deadline_in(1s)).ok());
  ASSERT_TRUE(files.set("old/in/x", "1", deadline_in(1s)).ok());
  EXPECT_FALSE(files.erase_folder_if_empty("hello"));
  files.erase_all();
  EXPECT_TRUE(std::filesystem::is_empty(directory_.file("job")));
  ASSERT_TRUE(files.set("hello/0", "1", deadline_in(1s)).ok());
  files.erase("hello/0");
  EXPECT_TRUE(files.erase_folder_if_empty("hello"));
  EXPECT_FALSE(files.erase_folder_if_empty("hello"));
}

// Lets nothing be written from `full` on, as a file system without a free block: names can still be made.
class Full final : public SharedFiles {
 public:
  explicit Full(int code) : code_(code) {}
  Status create(const std::string& path, std::string_view bytes) override {
    return full ? errno_error(code_, path) : SharedFiles::create(path, bytes);
  }
  std::atomic<bool> full{false};

 private:
  const int code_;
};

TEST_F(DirectoryStoreTest, OnAFullFileSystemAnAbortStillReachesAll) {
  for (const int code : {ENOSPC, EDQUOT}) {
    const auto files = std::make_shared<Full>(code);
    std::latch opened(3);
    std::vector<std::string> told(3);
    run_ranks(ranks_of(3), [&](int rank) {
      auto exchange = open_in_directory(directory_.path().string(), "job", {rank, 3}, deadline_in(kAmple), files);
      ASSERT_TRUE(exchange.ok()) << exchange.error().to_string();
      opened.arrive_and_wait();
      files->full = true;
      auto save = (*exchange)->nested(1);
      ASSERT_TRUE(save.ok());
      const auto start = steady_clock().now();
      if (rank == 2) (void)(*save)->abort(errno_error(code, "/ckpt/segment"), 7, deadline_in(kAmple));
      // The others find out by themselves that they cannot take part, or hear of rank 2: one cause for all.
      const auto all = (*save)->gather("roots", "", deadline_in(kAmple));
      ASSERT_FALSE(all.ok());
      EXPECT_EQ(all.error().system_errno(), code);
      EXPECT_LT(steady_clock().now() - start, kAmple / 4);
      told[static_cast<std::size_t>(rank)] = all.error().message();
    });
    EXPECT_EQ(std::ranges::count(told, told[0]), 3) << ::testing::PrintToString(told);
  }
}

TEST_F(DirectoryStoreTest, OneBlindRankIsWaitedFor) {
  run_ranks(ranks_of(4), [&](int rank) {
    const auto files = rank == 2 ? std::make_shared<Blind>(60) : std::make_shared<SharedFiles>();
    auto exchange = open_in_directory(directory_.path().string(), "job", {rank, 4}, deadline_in(kAmple), files);
    ASSERT_TRUE(exchange.ok()) << exchange.error().to_string();
    const auto all = (*exchange)->gather("roots", std::to_string(rank), deadline_in(kAmple));
    ASSERT_TRUE(all.ok()) << all.error().to_string();
    EXPECT_EQ(*all, (std::vector<std::string>{"0", "1", "2", "3"}));
  });
}

TEST_F(DirectoryStoreTest, ARankThatCannotWriteEndsAllWithinTheDeadline) {
  class ReadOnly final : public SharedFiles {
   public:
    Status create(const std::string& path, std::string_view) override { return errno_error(EACCES, path); }
  };
  constexpr auto kShort = 800ms;
  run_ranks(ranks_of(3), [&](int rank) {
    const auto start = steady_clock().now();
    std::shared_ptr<SharedFiles> files = std::make_shared<SharedFiles>();
    if (rank == 1) files = std::make_shared<ReadOnly>();
    const auto exchange = open_in_directory(directory_.path().string(), "job", {rank, 3}, deadline_in(kShort), files);
    EXPECT_LT(steady_clock().now() - start, kShort + 1s);
    ASSERT_FALSE(exchange.ok());
    if (rank == 1) {
      EXPECT_EQ(exchange.error().system_errno(), EACCES);
    } else {
      EXPECT_EQ(exchange.error().message(), "rank 1 did not come to \"open\" before the deadline");
    }
  });
}

TEST_F(DirectoryStoreTest, BadNamesAreRefused) {
  for (const std::string& name : {std::string(), std::string("a/b"), std::string(".."), std::string(".")})
    EXPECT_EQ(open_in_directory(directory_.path().string(), name, {0, 2}, deadline_in(1s)).error().code(),
              ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace infercluster::exchange
