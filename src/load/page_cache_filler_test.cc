// SPDX-License-Identifier: Apache-2.0
#include "load/page_cache_filler.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>

#include "base/units.h"
#include "os/file.h"
#include "os/page_cache.h"
#include "testing/temp_dir.h"

namespace infercluster::load {
namespace {

class PageCacheFillerTest : public ::testing::Test {
 protected:
  PageCacheFiller::File cold_file(const std::string& name, std::uint64_t bytes) {
    const std::string path = directory_.write(name, std::string(bytes, 'x'));
    const Fd fd = os::open_for_reading(path).value();
    ::fsync(fd.get());
    EXPECT_TRUE(os::drop_page_cache(fd).ok());
    return {path, os::identity_of(fd).value()};
  }

  testing::TempDir directory_;
};

TEST_F(PageCacheFillerTest, FillsWhatIsAdded) {
  std::atomic<std::uint64_t> filled{0};
  PageCacheFiller filler(nullptr, [&filled](std::uint64_t bytes) { filled += bytes; });
  std::vector<PageCacheFiller::File> files;
  files.push_back(cold_file("a", 9 * kMiB));
  files.push_back(cold_file("b", 5));
  const Fd watch = os::open_for_reading(files[0].path).value();
  if (os::residency_of(watch, 0, 9 * kMiB).fraction > 0.5) GTEST_SKIP() << "this file system does not drop pages";
  const PageCacheFiller::Ticket ticket = filler.add(std::move(files));
  while (!filler.wait_for(ticket, std::chrono::seconds(10))) {
  }
  EXPECT_GT(os::residency_of(watch, 0, 9 * kMiB).fraction, 0.9);
  EXPECT_EQ(filled, 9 * kMiB + 5);
}

TEST_F(PageCacheFillerTest, AFileThatTookThePlaceOfAnotherIsLeftAlone) {
  PageCacheFiller filler(nullptr);
  std::vector<PageCacheFiller::File> files = {cold_file("a", 9 * kMiB), {directory_.file("gone"), {}}};
  static_cast<void>(cold_file("b", 9 * kMiB));
  std::filesystem::rename(directory_.file("b"), directory_.file("a"));
  const Fd watch = os::open_for_reading(directory_.file("a")).value();
  if (os::residency_of(watch, 0, 9 * kMiB).fraction > 0.5) GTEST_SKIP() << "this file system does not drop pages";
  const PageCacheFiller::Ticket ticket = filler.add(std::move(files));
  while (!filler.wait_for(ticket, std::chrono::seconds(10))) {
  }
  EXPECT_LT(os::residency_of(watch, 0, 9 * kMiB).fraction, 0.5);
}

TEST_F(PageCacheFillerTest, AGovernorThatNeverAdmitsDoesNotKeepItFromEnding) {
  io::Governor governor(steady_clock(), {.foreground = 0, .fill = 1, .drain = 0});
  PageCacheFiller filler(&governor);
  std::vector<PageCacheFiller::File> files;
  for (const char* name : {"a", "b", "c"}) files.push_back(cold_file(name, 9 * kMiB));
  const PageCacheFiller::Ticket ticket = filler.add(std::move(files));
  EXPECT_FALSE(filler.wait_for(ticket, std::chrono::milliseconds(1)));
}  // the destructor ends it

}  // namespace
}  // namespace infercluster::load
