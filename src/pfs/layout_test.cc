// SPDX-License-Identifier: Apache-2.0
// Detection and layouts against a double that records what would go to the file system.
#include "pfs/layout.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <vector>

#include "base/units.h"
#include "pfs/wire.h"
#include "testing/pfs_double.h"
#include "testing/temp_dir.h"

namespace infercluster::pfs {
namespace {

constexpr std::uint32_t kLustre = 0x0BD00BD0;
constexpr std::uint32_t kGpfs = 0x47504653;
constexpr std::uint32_t kCeph = 0x00C36400;
constexpr std::uint32_t kFuse = 0x65735546;

class LayoutTest : public ::testing::Test {
 protected:
  LayoutTest() : folder_(::open(directory_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {}
  Result<Created> make(const Wish& wish) { return create(folder_, "segment", wish, 0, double_); }
  bool is_there() const { return std::filesystem::exists(directory_.path() / "segment"); }

  testing::TempDir directory_;
  Fd folder_;
  testing::PfsDouble double_;
};

TEST(Kind, ByMagicAndByTheTypeOfFuseMounts) {
  EXPECT_EQ(kind_of(kLustre, "lustre"), Kind::lustre);
  EXPECT_EQ(kind_of(kGpfs, "gpfs"), Kind::gpfs);
  EXPECT_EQ(kind_of(kCeph, "ceph"), Kind::cephfs);
  EXPECT_EQ(kind_of(0x6969, "nfs4"), Kind::nfs);
  EXPECT_EQ(kind_of(0x01021994, "tmpfs"), Kind::memory);
  EXPECT_EQ(kind_of(0xEF53, "ext4"), Kind::local);
  EXPECT_EQ(kind_of(0x58465342, "xfs"), Kind::local);
  EXPECT_EQ(kind_of(0x794C7630, "overlay"), Kind::local);
  EXPECT_EQ(kind_of(0x12345678, "unheard-of"), Kind::local);
  EXPECT_EQ(kind_of(kFuse, "fuse.ceph-fuse"), Kind::cephfs);
  EXPECT_EQ(kind_of(kFuse, "fuse.sshfs"), Kind::other_network);
  EXPECT_EQ(kind_of(kFuse, ""), Kind::other_network);
}

TEST_F(LayoutTest, IdentifiesWithoutAMountTable) {
  double_.magic = kLustre;
  double_.mount_type = "";
  EXPECT_EQ(identify(folder_, double_)->kind, Kind::lustre);
}

TEST_F(LayoutTest, ThisMachinesOwnDirectoryIsKnown) {
  const auto system = identify(folder_);
  ASSERT_TRUE(system.ok()) << system.error().to_string();
  EXPECT_GE(system->block_bytes, 512U);
  EXPECT_TRUE(system->kind == Kind::local || system->kind == Kind::memory) << name_of(system->kind);
}

TEST(Plan, FewestStripesThatSuffice) {
  const FileSystem lustre{Kind::lustre, 4 * kMiB};
  EXPECT_EQ(plan_layout(lustre, {.file_bytes = 1}).stripe_count, 1U);
  EXPECT_EQ(plan_layout(lustre, {.file_bytes = 256 * kMiB}).stripe_count, 1U);
  EXPECT_EQ(plan_layout(lustre, {.file_bytes = 256 * kMiB + 1}).stripe_count, 2U);
  EXPECT_EQ(plan_layout(lustre, {.file_bytes = 100 * kGiB}).stripe_count, 8U);
  EXPECT_EQ(plan_layout(lustre, {.file_bytes = ~0ULL}).stripe_count, 8U);
  EXPECT_EQ(plan_layout(lustre, {}).stripe_count, 8U);
  EXPECT_EQ(plan_layout(lustre, {.file_bytes = 100 * kGiB, .files_at_once = 256}).stripe_count, 4U);
  EXPECT_EQ(plan_layout(lustre, {.stripe_count = 65535}).stripe_count, 160U);
  EXPECT_EQ(plan_layout(lustre, {.stripe_bytes = 100'000}).stripe_bytes, 131'072U);
  EXPECT_EQ(plan_layout(lustre, {}).stripe_bytes, 4 * kMiB);
  const Layout ceph = plan_layout({Kind::cephfs, 4 * kMiB}, {.stripe_bytes = 3 << 20});
  EXPECT_EQ(ceph.object_bytes, 15 * kMiB);  // a multiple of the stripe unit
  EXPECT_EQ(plan_layout({Kind::cephfs, 4 * kMiB}, {.stripe_bytes = 64 << 20}).object_bytes, 64 * kMiB);
  for (const Kind kind : {Kind::local, Kind::memory, Kind::nfs, Kind::other_network})
    EXPECT_EQ(plan_layout({kind, 4096}, {.file_bytes = kGiB, .stripe_count = 4}).stripe_count, 0U);
}

TEST_F(LayoutTest, LustreGetsTheDocumentedBytesAtCreate) {
  double_.magic = kLustre;
  auto created = make({.file_bytes = 2 * kGiB});
  ASSERT_TRUE(created.ok()) << created.error().to_string();
  EXPECT_EQ(double_.open_flags, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY | FASYNC);
  ASSERT_EQ(double_.calls.size(), 1U);
  EXPECT_EQ(double_.calls[0], "lustre.lov=" + encode_lustre({.stripe_bytes = 4 << 20, .stripe_count = 8, .pool = ""}));
  EXPECT_TRUE(created->layout.chosen);
  EXPECT_EQ(describe(created->layout), "lustre, 8 stripes of 4.0 MiB");
  EXPECT_TRUE(created->fd.valid());
}

TEST_F(LayoutTest, WhatIsReportedIsReadBack) {
  double_.magic = kLustre;
  double_.failures["lustre.lov"] = EPERM;
  double_.xattrs["lustre.lov"] = encode_lustre({.stripe_bytes = 1 << 20, .stripe_count = 1, .pool = ""});
  const auto created = make({.file_bytes = 2 * kGiB});
  ASSERT_TRUE(created.ok());
  EXPECT_FALSE(created->layout.chosen);
  EXPECT_EQ(created->layout.stripe_count, 1U);
  EXPECT_EQ(describe(created->layout),
            "lustre, 1 stripe of 1.0 MiB (cannot set lustre.lov: Operation not permitted; the administrator must allow "
            "it, or set a layout on the directory)");
  EXPECT_TRUE(is_there());
}

TEST_F(LayoutTest, OldLustreClientsGetTheIoctl) {
  double_.magic = kLustre;
  double_.failures["lustre.lov"] = EOPNOTSUPP;
  const auto created = make({.file_bytes = 2 * kGiB, .pool = "flash"});
  ASSERT_TRUE(created.ok());
  ASSERT_EQ(double_.calls.size(), 2U);
  EXPECT_EQ(double_.calls[1], "ioctl " + std::to_string(0x4008669AUL) + "=" +
                                  encode_lustre({.stripe_bytes = 4 << 20, .stripe_count = 8, .pool = "flash"}));
  EXPECT_EQ(describe(created->layout), "lustre, 8 stripes of 4.0 MiB, pool flash");
}

TEST_F(LayoutTest, NoSpaceForTheLayoutIsAnErrorAndLeavesNoFile) {
  for (const int code : {ENOSPC, EDQUOT}) {
    double_.magic = kLustre;
    double_.failures["lustre.lov"] = code;
    const auto created = make({});
    ASSERT_FALSE(created.ok());
    EXPECT_EQ(created.error().system_errno(), code);
    EXPECT_EQ(created.error().path(), "segment");
    EXPECT_FALSE(is_there());
  }
}

TEST_F(LayoutTest, PoolsThatDoNotFitAreRefused) {
  double_.magic = kLustre;
  EXPECT_EQ(make({.pool = "sixteen-bytes-xx"}).error().code(), ErrorCode::invalid_argument);
  EXPECT_FALSE(is_there());
}

TEST_F(LayoutTest, CephGetsItsLayoutInOneStep) {
  double_.magic = kCeph;
  double_.xattrs = {{"ceph.file.layout.stripe_unit", "4194304"},
                    {"ceph.file.layout.stripe_count", "4"},
                    {"ceph.file.layout.object_size", "16777216"},
                    {"ceph.file.layout.pool", "flash"}};
  const auto created = make({.file_bytes = kGiB, .pool = "flash"});
  ASSERT_TRUE(created.ok());
  EXPECT_EQ(double_.calls, (std::vector<std::string>{"ceph.file.layout=stripe_unit=4194304 stripe_count=4 "
                                                     "object_size=16777216 pool=flash"}));
  EXPECT_EQ(double_.open_flags & (FASYNC | O_NOCTTY), 0);
  EXPECT_TRUE(created->layout.chosen);
  EXPECT_EQ(describe(created->layout), "cephfs, 4 stripes of 4.0 MiB, objects of 16.0 MiB, pool flash");
}

TEST_F(LayoutTest, GpfsIsPreallocatedThenHinted) {
  double_.magic = kGpfs;
  double_.block_bytes = 8 * kMiB;
  const auto created = make({.file_bytes = kGiB});
  ASSERT_TRUE(created.ok());
  EXPECT_EQ(double_.calls,
            (std::vector<std::string>{"prealloc 0 1073741824", "fcntl=" + encode_gpfs_write_hint(kGiB)}));
  EXPECT_EQ(describe(created->layout), "gpfs, blocks of 8.0 MiB, 1.00 GiB preallocated");
}

TEST_F(LayoutTest, GpfsWithoutSpaceFailsBeforeAByteIsWritten) {
  double_.magic = kGpfs;
  double_.failures["prealloc"] = ENOSPC;
  EXPECT_EQ(make({.file_bytes = kGiB}).error().system_errno(), ENOSPC);
  EXPECT_FALSE(is_there());
}

TEST_F(LayoutTest, GpfsHintsMayBeRefused) {
  double_.magic = kGpfs;
  double_.failures["fcntl"] = EINVAL;
  const auto created = make({.file_bytes = kGiB});
  ASSERT_TRUE(created.ok());
  EXPECT_EQ(created->layout.preallocated_bytes, kGiB);
  EXPECT_EQ(created->layout.note, "gpfs_fcntl failed: Invalid argument");
}

TEST_F(LayoutTest, OthersAreLeftAlone) {
  const auto created = make({.file_bytes = kGiB, .stripe_count = 4});
  ASSERT_TRUE(created.ok());
  EXPECT_TRUE(double_.calls.empty());
  EXPECT_EQ(describe(created->layout), "local");
  EXPECT_EQ(make({}).error().system_errno(), EEXIST);
}

TEST_F(LayoutTest, DirectoriesTellWhatTheirFilesGet) {
  double_.magic = kCeph;
  EXPECT_EQ(describe(*read_layout(folder_, double_)),
            "cephfs (the directory has no layout of its own, and takes its parent's)");
  double_.xattrs = {{"ceph.dir.layout.stripe_unit", "65536"},
                    {"ceph.dir.layout.stripe_count", "2"},
                    {"ceph.dir.layout.object_size", "131072"},
                    {"ceph.dir.layout.pool", "data"}};
  EXPECT_EQ(describe(*read_layout(folder_, double_)), "cephfs, 2 stripes of 64.0 KiB, objects of 128.0 KiB, pool data");
  double_.xattrs["ceph.dir.layout.stripe_count"] = "2x";
  EXPECT_EQ(read_layout(folder_, double_).error().code(), ErrorCode::corrupt);
  double_.magic = kLustre;
  EXPECT_EQ(describe(*read_layout(folder_, double_)), "lustre (no layout of its own: the file system's default)");
  double_.xattrs["lustre.lov"] = encode_lustre({.stripe_bytes = 1 << 20, .stripe_count = 0xFFFF, .pool = ""});
  EXPECT_EQ(describe(*read_layout(folder_, double_)), "lustre, stripes of 1.0 MiB over all targets");
  double_.xattrs["lustre.lov"] = "short";
  EXPECT_EQ(read_layout(folder_, double_).error().code(), ErrorCode::corrupt);
}

}  // namespace
}  // namespace infercluster::pfs
