// SPDX-License-Identifier: Apache-2.0
// Segments on parallel file systems: what they ask for at create, against the double of such a file system.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/units.h"
#include "checkpoint/checkpoint_test_helpers.h"
#include "checkpoint/checkpointer.h"
#include "pfs/wire.h"
#include "testing/pfs_double.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

constexpr std::uint32_t kLustre = 0x0BD00BD0;
constexpr std::uint32_t kGpfs = 0x47504653;

class SegmentLayout : public ::testing::Test {
 protected:
  SegmentLayout() { memory_.add(test::whole("w", test::Dtype::u8, {300'000}), 1); }

  std::shared_ptr<const Save> save(std::uint64_t step) {
    Options options;
    options.layouts = &layouts_;
    auto checkpointer = Checkpointer::open(temp_.path().string(), options);
    IC_ASSERT(checkpointer.ok());
    auto save = (*checkpointer)->save(step, memory_.state(), {});
    IC_ASSERT(save.ok());
    (*checkpointer)->wait_idle();
    return *save;
  }
  std::string problem(std::uint64_t step) {
    auto checkpoint = Checkpoint::open(io::system_files(), temp_.path().string(), step);
    if (!checkpoint.ok()) return checkpoint.error().to_string();
    test::Memory loaded;
    loaded.add(test::whole("w", test::Dtype::u8, {300'000}), 1, false);
    const auto report = (*checkpoint)->restore(loaded.targets(), {});
    return report.ok() ? loaded.difference(1) : report.error().to_string();
  }

  testing::TempDir temp_;
  test::Memory memory_;
  testing::PfsDouble layouts_;
};

TEST_F(SegmentLayout, IsSetAtCreateAndReported) {
  layouts_.magic = kLustre;
  const auto done = save(1);
  ASSERT_TRUE(done->wait().ok()) << done->wait().error().to_string();
  // The segment alone: the index and the record are small, and their directory's layout does.
  ASSERT_EQ(layouts_.calls.size(), 1U);
  EXPECT_EQ(layouts_.calls[0],
            "lustre.lov=" + pfs::encode_lustre({.stripe_bytes = 4 << 20, .stripe_count = 1, .pool = ""}));
  EXPECT_EQ(layouts_.open_flags & (FASYNC | O_NOCTTY), FASYNC | O_NOCTTY);
  EXPECT_EQ(done->report().layout, "lustre, 1 stripe of 4.0 MiB");
  EXPECT_EQ(problem(1), "");
}

TEST_F(SegmentLayout, ThatIsRefusedIsReportedAndTheSaveDurable) {
  layouts_.magic = kLustre;
  layouts_.failures["lustre.lov"] = EPERM;
  const auto done = save(1);
  ASSERT_TRUE(done->wait().ok());
  EXPECT_NE(done->report().layout.find("Operation not permitted"), std::string::npos) << done->report().layout;
  EXPECT_EQ(problem(1), "");
}

TEST_F(SegmentLayout, NoSpaceAtPreallocationFailsTheSaveByName) {
  ASSERT_TRUE(save(1)->wait().ok());
  layouts_.magic = kGpfs;
  layouts_.failures["prealloc"] = EDQUOT;
  const auto done = save(2);
  const Status status = done->wait();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().system_errno(), EDQUOT);
  EXPECT_NE(status.error().path().find("step-2/node-0.0."), std::string::npos) << status.error().path();
  EXPECT_EQ(problem(1), "");
}

TEST_F(SegmentLayout, LocalFileSystemsHaveNone) {
  const auto done = save(1);
  ASSERT_TRUE(done->wait().ok());
  EXPECT_TRUE(layouts_.calls.empty());
  EXPECT_EQ(done->report().layout, "");
  EXPECT_EQ(problem(1), "");
}

// On a real CephFS, which INFERCLUSTER_CEPHFS names (a mounted directory).
TEST(SegmentOnCephFs, IsLaidOutSavedAndRestored) {
  const char* const mount = std::getenv("INFERCLUSTER_CEPHFS");  // NOLINT(concurrency-mt-unsafe): read only
  if (mount == nullptr || *mount == '\0') GTEST_SKIP() << "INFERCLUSTER_CEPHFS names no mounted CephFS";
  std::string root = (std::filesystem::path(mount) / "checkpoints-XXXXXX").string();
  ASSERT_NE(::mkdtemp(root.data()), nullptr) << root;
  test::Memory memory;
  memory.add(test::whole("w", test::Dtype::u8, {9'000'001}), 1);
  {
    auto checkpointer = Checkpointer::open(root, {});
    ASSERT_TRUE(checkpointer.ok()) << checkpointer.error().to_string();
    const auto save = (*checkpointer)->save(7, memory.state(), {});
    ASSERT_TRUE(save.ok()) << save.error().to_string();
    const Status durable = (*save)->wait();
    ASSERT_TRUE(durable.ok()) << durable.error().to_string();
    EXPECT_TRUE((*save)->report().layout.starts_with("cephfs, 1 stripe of 4.0 MiB, objects of 16.0 MiB, pool "))
        << (*save)->report().layout;
  }
  auto checkpoint = Checkpoint::open(io::system_files(), root, 7);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
  test::Memory loaded;
  loaded.add(test::whole("w", test::Dtype::u8, {9'000'001}), 1, false);
  const auto report = (*checkpoint)->restore(loaded.targets(), {});
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_EQ(loaded.difference(1), "");
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace infercluster::checkpoint
