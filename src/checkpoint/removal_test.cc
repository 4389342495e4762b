// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/fd.h"
#include "checkpoint/directory.h"
#include "checkpoint/names.h"
#include "testing/fault_files.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kBytes = 3 * kFreedAtOnce + 4096;
constexpr char kLast = 'z';  // of the large file

// Trash with a large segment, of which only the last byte takes space, and a small one.
class Removal : public ::testing::Test {
 protected:
  void SetUp() override {
    trash_ = trash_name(5, "0123456789abcdef");
    fs::create_directory(temp_.path() / trash_);
    std::ofstream(path("node-0.0.1.safetensors")) << "small";
    std::ofstream large(path("node-1.0.1.safetensors"));
    large.seekp(static_cast<std::streamoff>(kBytes - 1));
    large.put(kLast);
  }
  [[nodiscard]] std::string path(const std::string& name) const { return (temp_.path() / trash_ / name).string(); }
  [[nodiscard]] std::string large() const { return path("node-1.0.1.safetensors"); }
  void remove() {
    const auto root = calls_.open_directory(temp_.path().string());
    const Status removed = remove_trash(calls_, *root, trash_, [this] { ++paces_; });
    EXPECT_TRUE(removed.ok()) << removed.error().to_string();
    EXPECT_FALSE(fs::exists(temp_.path() / trash_));
  }
  [[nodiscard]] std::size_t cuts() const {
    std::size_t found = 0;
    for (const auto& call : calls_.calls()) found += call.starts_with("set_size ") ? 1U : 0U;
    return found;
  }

  testing::TempDir temp_;
  testing::FaultFiles calls_{nullptr};
  std::string trash_;
  std::size_t paces_ = 0;
};

TEST_F(Removal, TheSpaceOfALargeFileGoesPieceByPiece) {
  remove();
  if (paces_ == 0) GTEST_SKIP() << "the file system of " << temp_.path() << " does not say who has a file open";
  EXPECT_EQ(paces_, 4U);
  EXPECT_EQ(cuts(), 3U);
}

TEST_F(Removal, WhoHasItOpenKeepsAllOfIt) {
  const Fd reader(::open(large().c_str(), O_RDONLY | O_CLOEXEC));
  remove();
  char last = 0;
  EXPECT_EQ(::pread(reader.get(), &last, 1, static_cast<off_t>(kBytes - 1)), 1);
  EXPECT_EQ(last, kLast);
  EXPECT_EQ(paces_, 0U);
}

TEST_F(Removal, WhoHasItMappedKeepsAllOfIt) {
  void* map = MAP_FAILED;  // NOLINT(performance-no-int-to-ptr): the system's macro
  {
    const Fd reader(::open(large().c_str(), O_RDONLY | O_CLOEXEC));
    map = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, reader.get(), 0);
  }
  ASSERT_NE(map, MAP_FAILED);  // NOLINT(performance-no-int-to-ptr): the system's macro
  remove();
  EXPECT_EQ(static_cast<const char*>(map)[kBytes - 1], kLast);
  ::munmap(map, kBytes);
}

TEST_F(Removal, WhatAnotherCheckpointRefersToStaysWhole) {
  const fs::path kept = temp_.path() / "kept";
  fs::create_hard_link(large(), kept);
  remove();
  EXPECT_EQ(fs::file_size(kept), kBytes);
  EXPECT_EQ(paces_, 0U);
}

// Whatever fails on the way: the file is gone, or the error says so.
TEST_F(Removal, AFailureToFreeSlowlyLeavesNothing) {
  for (const std::string_view failing : {"open_to_write", "is_forgotten", "set_size"}) {
    fs::remove_all(temp_.path() / trash_);
    SetUp();
    testing::FaultFiles faulty([&](std::uint64_t, std::string_view call, const std::string&) {
      return testing::FileFault{.error = call == failing ? EIO : 0};
    });
    const auto root = faulty.open_directory(temp_.path().string());
    const Status removed = remove_trash(faulty, *root, trash_, [] {});
    EXPECT_TRUE(removed.ok()) << failing;
    EXPECT_FALSE(fs::exists(temp_.path() / trash_)) << failing;
  }
}

}  // namespace
}  // namespace infercluster::checkpoint
