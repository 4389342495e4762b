// SPDX-License-Identifier: Apache-2.0
#include "os/page_cache.h"

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <span>
#include <string>

#include "base/units.h"
#include "os/file.h"
#include "os/mount.h"
#include "testing/child.h"
#include "testing/temp_dir.h"

namespace infercluster::os {
namespace {

using testing::in_child;
using testing::refuse;

constexpr std::uint64_t kFileBytes = 4 * kMiB + 100;

// A clean file on a device, empty of cached pages.
class PageCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_for_reading(dir_.write("a", std::string(kFileBytes, 'x')));
    ASSERT_TRUE(opened);
    fd_ = std::move(opened).value();
    if (file_system_of(fd_).value().in_memory) GTEST_SKIP() << "the temporary directory has no device below";
    ASSERT_EQ(::fsync(fd_.get()), 0);
    ASSERT_TRUE(drop_page_cache(fd_));
  }

  void read_all() const {
    std::string content(kFileBytes, ' ');
    ASSERT_TRUE(read_exactly(fd_, std::as_writable_bytes(std::span(content)), 0, "a"));
  }

  testing::TempDir dir_;
  Fd fd_;
};

TEST_F(PageCacheTest, ADroppedFileIsNotResident) {
  const Residency residency = residency_of(fd_, 0, kFileBytes);
  EXPECT_EQ(residency.fraction, 0) << residency.method;
}

TEST_F(PageCacheTest, AReadFileIsResident) {
  read_all();
  const Residency residency = residency_of(fd_, 0, kFileBytes);
  if (residency.method == "unknown") GTEST_SKIP() << "this file system cannot tell";
  EXPECT_EQ(residency.fraction, 1) << residency.method;
}

TEST_F(PageCacheTest, ProbingSeesBothStates) {
  const Residency dropped = residency_by_probing(fd_, 0, kFileBytes);
  if (dropped.method == "unknown") GTEST_SKIP() << "this file system cannot tell";
  EXPECT_EQ(dropped.method, "nowait probe");
  EXPECT_EQ(dropped.fraction, 0);
  read_all();
  EXPECT_EQ(residency_by_probing(fd_, 0, kFileBytes).fraction, 1);
}

TEST_F(PageCacheTest, ProbingBringsInNoMoreThanWhatItAsksFor) {
  if (residency_by_probing(fd_, 0, kFileBytes).method == "unknown") GTEST_SKIP() << "this file system cannot tell";
  const Residency after = residency_of(fd_, 0, kFileBytes);
  if (after.method != "cachestat") GTEST_SKIP() << "no cachestat";
  EXPECT_LE(after.fraction, 64.0 / (kFileBytes / 4096.0));
}

TEST_F(PageCacheTest, ProbingADirectDescriptorAsksThePageCache) {
  const auto direct = reopen_for_reading(fd_, OpenMode::direct);
  if (!direct) GTEST_SKIP() << "no direct I/O here";
  read_all();
  const Residency residency = residency_by_probing(*direct, 0, kFileBytes);
  if (residency.method == "unknown") GTEST_SKIP() << "this file system cannot tell";
  EXPECT_EQ(residency.fraction, 1);
}

TEST_F(PageCacheTest, ARangeIsToldFromItsNeighbours) {
  ASSERT_EQ(::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_RANDOM), 0);  // no readahead beyond what is read
  std::string piece(kMiB, ' ');
  ASSERT_TRUE(read_exactly(fd_, std::as_writable_bytes(std::span(piece)), kMiB, "a"));
  const Residency inside = residency_of(fd_, kMiB, kMiB);
  if (inside.method == "unknown") GTEST_SKIP() << "this file system cannot tell";
  EXPECT_EQ(inside.fraction, 1);
  EXPECT_EQ(residency_of(fd_, 2 * kMiB, kMiB).fraction, 0);
  EXPECT_EQ(residency_by_probing(fd_, kMiB, kMiB).fraction, 1);
  EXPECT_EQ(residency_by_probing(fd_, 2 * kMiB, kMiB).fraction, 0);
}

TEST_F(PageCacheTest, OnlyWhatIsWithinTheFileCounts) {
  read_all();
  const Residency residency = residency_of(fd_, 0, UINT64_MAX);
  if (residency.method == "unknown") GTEST_SKIP() << "this file system cannot tell";
  EXPECT_EQ(residency.fraction, 1);
  EXPECT_EQ(residency_of(fd_, kFileBytes, 10).method, "unknown");
  EXPECT_EQ(residency_of(fd_, 0, 0).method, "unknown");
}

TEST_F(PageCacheTest, FillingBringsInTheWholeRange) {
  ASSERT_TRUE(fill_page_cache(fd_, 0, UINT64_MAX));
  const Residency residency = residency_of(fd_, 0, kFileBytes);
  if (residency.method != "cachestat") GTEST_SKIP() << "only cachestat sees pages on their way";
  EXPECT_EQ(residency.fraction, 1);
}

// cachestat refuses files that the caller neither owns nor may write: there the answer comes from probing.
TEST_F(PageCacheTest, FilesOfOthersAreProbed) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become someone else";
  if (residency_by_probing(fd_, 0, kFileBytes).method == "unknown") GTEST_SKIP() << "this file system cannot tell";
  std::filesystem::permissions(dir_.path(), std::filesystem::perms(0755));  // a stranger may look up and read
  std::filesystem::permissions(dir_.file("a"), std::filesystem::perms(0644));
  read_all();
  constexpr uid_t kNobody = 65534;
  EXPECT_EQ(in_child([&] {
              if (::setgroups(0, nullptr) != 0 || ::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) return 2;
              const Residency residency = residency_of(fd_, 0, kFileBytes);
              // "cachestat" is right as well: older kernels have no such rule.
              return residency.fraction == 1 && residency.method != "unknown" ? 0 : 1;
            }),
            0);
}

TEST_F(PageCacheTest, KernelsWithoutCachestatAreProbed) {
  if (residency_by_probing(fd_, 0, kFileBytes).method == "unknown") GTEST_SKIP() << "this file system cannot tell";
  read_all();
  EXPECT_EQ(in_child([&] {
              refuse({.number = 451, .system_errno = ENOSYS});
              const Residency residency = residency_of(fd_, 0, kFileBytes);
              return residency.fraction == 1 && residency.method == "nowait probe" ? 0 : 1;
            }),
            0);
}

TEST_F(PageCacheTest, FileSystemsThatCannotTellAreUnknown) {
  read_all();
  EXPECT_EQ(in_child([&] {
              refuse({.number = 451, .system_errno = EOPNOTSUPP});
              refuse({.number = SYS_preadv2, .system_errno = EOPNOTSUPP});
              const Residency residency = residency_of(fd_, 0, kFileBytes);
              return residency.fraction == 0 && residency.method == "unknown" ? 0 : 1;
            }),
            0);
}

TEST(PageCache, WhereNothingCanBeToldItIsUnknown) {
  const auto fd = open_for_reading("/proc/self/status");
  ASSERT_TRUE(fd);
  EXPECT_EQ(residency_of(*fd, 0, 100).method, "unknown");
  EXPECT_EQ(residency_of(Fd(), 0, 100).method, "unknown");
}

}  // namespace
}  // namespace infercluster::os
