// SPDX-License-Identifier: Apache-2.0
// On a real CephFS, which INFERCLUSTER_CEPHFS names (a mounted directory). Skipped without.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/units.h"
#include "pfs/layout.h"

namespace infercluster::pfs {
namespace {

class CephFs : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* const mount = std::getenv("INFERCLUSTER_CEPHFS");  // NOLINT(concurrency-mt-unsafe): read only
    if (mount == nullptr || *mount == '\0') GTEST_SKIP() << "INFERCLUSTER_CEPHFS names no mounted CephFS";
    std::string name = (std::filesystem::path(mount) / "infercluster-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr) << name;
    path_ = name;
    folder_ = Fd(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_TRUE(folder_.valid());
  }
  void TearDown() override {
    if (!path_.empty()) std::filesystem::remove_all(path_);
  }
  std::filesystem::path path_;
  Fd folder_;
};

TEST_F(CephFs, IsKnownByItsMount) {
  const auto system = identify(folder_);
  ASSERT_TRUE(system.ok());
  EXPECT_EQ(system->kind, Kind::cephfs);
}

TEST_F(CephFs, LayoutIsSetAndReadBack) {
  const auto created = create(folder_, "segment", {.file_bytes = kGiB});
  ASSERT_TRUE(created.ok()) << created.error().to_string();
  EXPECT_TRUE(created->layout.chosen) << describe(created->layout);
  EXPECT_EQ(created->layout.stripe_bytes, 4 * kMiB);
  EXPECT_EQ(created->layout.stripe_count, 4U);
  EXPECT_EQ(created->layout.object_bytes, 16 * kMiB);
  EXPECT_FALSE(created->layout.pool.empty());
  EXPECT_EQ(created->layout.note, "");
  // Bytes written over several stripes come back.
  const std::string bytes(5 * kMiB + 3, 'x');
  ASSERT_EQ(::pwrite(created->fd.get(), bytes.data(), bytes.size(), 2 * kMiB), static_cast<ssize_t>(bytes.size()));
  ASSERT_EQ(::fsync(created->fd.get()), 0);
  std::string back(bytes.size(), '\0');
  ASSERT_EQ(::pread(created->fd.get(), back.data(), back.size(), 2 * kMiB), static_cast<ssize_t>(back.size()));
  EXPECT_TRUE(back == bytes);
}

TEST_F(CephFs, SmallStripesAndLargeOnesAreTaken) {
  for (const std::uint32_t stripe_bytes : {65536U, 1U << 20, 3U << 20, 64U << 20}) {
    const auto created =
        create(folder_, std::to_string(stripe_bytes), {.stripe_bytes = stripe_bytes, .stripe_count = 3});
    ASSERT_TRUE(created.ok()) << created.error().to_string();
    EXPECT_EQ(created->layout.note, "") << stripe_bytes;
    EXPECT_EQ(created->layout.stripe_bytes, stripe_bytes);
    EXPECT_EQ(created->layout.stripe_count, 3U);
  }
}

TEST_F(CephFs, APoolThatIsNotThereIsANote) {
  const auto created = create(folder_, "segment", {.pool = "no-such-pool"});
  ASSERT_TRUE(created.ok());
  EXPECT_FALSE(created->layout.chosen);
  EXPECT_NE(created->layout.note, "");
}

TEST_F(CephFs, DirectoryWithoutALayoutSaysSo) {
  const auto layout = read_layout(folder_);
  ASSERT_TRUE(layout.ok()) << layout.error().to_string();
  EXPECT_NE(layout->note, "");
}

}  // namespace
}  // namespace infercluster::pfs
