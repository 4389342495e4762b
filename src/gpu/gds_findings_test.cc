// SPDX-License-Identifier: Apache-2.0
#include "gpu/gds_findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "testing/temp_dir.h"

namespace infercluster::gpu {
namespace {

using Level = GdsFinding::Level;
using ::testing::HasSubstr;

class GdsFindings : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::unsetenv("CUFILE_ENV_PATH_JSON"), 0);
    ASSERT_EQ(::unsetenv("CUFILE_FORCE_COMPAT_MODE"), 0);
  }
  void TearDown() override { SetUp(); }

  testing::TempDir directory_;
  std::string root_ = directory_.path().string() + "/";
};

TEST_F(GdsFindings, TheModuleThatIsNotLoadedIsNoWarning) {
  const GdsFinding finding = nvidia_fs_finding(root_);
  EXPECT_EQ(finding.level, Level::note);
  EXPECT_THAT(finding.state, HasSubstr("not loaded"));
  EXPECT_THAT(finding.consequence, HasSubstr("peer-to-peer"));
}

TEST_F(GdsFindings, TheModuleThatCorruptsLargeBuffersIsAWarning) {
  directory_.write("proc/driver/nvidia-fs/version", "version: 2.28.3\n");
  const GdsFinding finding = nvidia_fs_finding(root_);
  EXPECT_EQ(finding.level, Level::warning);
  EXPECT_EQ(finding.state, "version 2.28.3");
  EXPECT_THAT(finding.consequence, HasSubstr("4 GiB"));
  EXPECT_THAT(finding.remedy, HasSubstr("2.28.4"));
}

TEST_F(GdsFindings, TheRepairedModuleIsGood) {
  directory_.write("proc/driver/nvidia-fs/version", "version: 2.28.4\n");
  EXPECT_EQ(nvidia_fs_finding(root_).level, Level::good);
  directory_.write("proc/driver/nvidia-fs/version", "version: 10.0.0\n");
  EXPECT_EQ(nvidia_fs_finding(root_).level, Level::good);
}

TEST_F(GdsFindings, SysfsIsAskedWhereProcIsHidden) {
  directory_.write("sys/module/nvidia_fs/version", "2.17.5\n");
  const GdsFinding finding = nvidia_fs_finding(root_);
  EXPECT_EQ(finding.state, "version 2.17.5");
  EXPECT_EQ(finding.level, Level::warning);
}

TEST_F(GdsFindings, AVersionThatCannotBeReadIsSaidToBeUnknown) {
  directory_.write("proc/driver/nvidia-fs/version", "version: unknown\n");
  EXPECT_EQ(nvidia_fs_finding(root_).level, Level::note);
  directory_.write("proc/driver/nvidia-fs/version", "7\n");
  EXPECT_EQ(nvidia_fs_finding(root_).level, Level::note);
}

TEST_F(GdsFindings, XfsAndOrderedExt4AreRead) {
  EXPECT_EQ(file_system_finding("xfs", "rw,noatime").level, Level::good);
  EXPECT_EQ(file_system_finding("ext4", "rw,relatime,data=ordered").level, Level::good);
}

TEST_F(GdsFindings, Ext4MustShowThatItIsOrdered) {
  const GdsFinding silent = file_system_finding("ext4", "rw,relatime");
  EXPECT_EQ(silent.level, Level::warning);
  EXPECT_THAT(silent.remedy, HasSubstr("data=ordered"));
  EXPECT_EQ(file_system_finding("ext4", "rw,data=writeback").level, Level::warning);
  EXPECT_EQ(file_system_finding("ext4", "rw,data=ordered_not").level, Level::warning);
}

TEST_F(GdsFindings, OtherFileSystemsAreToldApart) {
  EXPECT_EQ(file_system_finding("lustre", "rw").level, Level::note);
  EXPECT_EQ(file_system_finding("overlay", "rw").level, Level::warning);
  EXPECT_EQ(file_system_finding("tmpfs", "rw").level, Level::warning);
}

TEST_F(GdsFindings, Bar1IsMeasuredBySysfs) {
  const std::string path = directory_.write("sys/bus/pci/devices/0000:0b:00.0/resource1", "");
  ASSERT_EQ(::truncate(path.c_str(), 256 << 20), 0);
  const GdsFinding small = bar1_finding("0000:0b:00.0", root_);
  EXPECT_EQ(small.level, Level::warning);
  EXPECT_THAT(small.state, HasSubstr("256.0 MiB"));
  ASSERT_EQ(::truncate(path.c_str(), 256LL << 30), 0);
  const GdsFinding large = bar1_finding("0000:0b:00.0", root_);
  EXPECT_EQ(large.level, Level::good);
  EXPECT_THAT(large.state, HasSubstr("256.00 GiB"));
  EXPECT_EQ(bar1_finding("0000:0c:00.0", root_).level, Level::note);
}

TEST_F(GdsFindings, WithoutAConfigurationTheDefaultAllowsCompatibilityMode) {
  const GdsFinding finding = compatibility_finding(root_);
  EXPECT_EQ(finding.level, Level::note);
  EXPECT_THAT(finding.state, HasSubstr("allowed"));
  EXPECT_THAT(finding.state, HasSubstr("etc/cufile.json"));
}

TEST_F(GdsFindings, TheConfigurationIsReadWithItsComments) {
  directory_.write("etc/cufile.json", R"({ // "allow_compat_mode": true
    "properties": { "max_direct_io_size_kb" : 16384,
      "allow_compat_mode" : false // refuse
    } })");
  EXPECT_EQ(compatibility_finding(root_).level, Level::good);
  directory_.write("etc/cufile.json", "{\"properties\":{\"allow_compat_mode\":true}}");
  EXPECT_EQ(compatibility_finding(root_).level, Level::note);
}

TEST_F(GdsFindings, TheEnvironmentNamesAnotherConfiguration) {
  directory_.write("etc/cufile.json", "{\"properties\":{\"allow_compat_mode\":true}}");
  const std::string other = directory_.write("other.json", "{\"properties\":{\"allow_compat_mode\":false}}");
  ASSERT_EQ(::setenv("CUFILE_ENV_PATH_JSON", other.c_str(), 1), 0);
  const GdsFinding finding = compatibility_finding(root_);
  EXPECT_EQ(finding.level, Level::good);
  EXPECT_THAT(finding.state, HasSubstr(other));
}

TEST_F(GdsFindings, AForcedCompatibilityModeIsAWarning) {
  directory_.write("etc/cufile.json", "{\"properties\":{\n\"force_compat_mode\": true}}");
  EXPECT_EQ(compatibility_finding(root_).level, Level::warning);
  directory_.write("etc/cufile.json",
                   "{\"properties\":{\n\"force_compat_mode\": false,\n\"allow_compat_mode\": false}}");
  EXPECT_EQ(compatibility_finding(root_).level, Level::good);
  ASSERT_EQ(::setenv("CUFILE_FORCE_COMPAT_MODE", "true", 1), 0);
  EXPECT_EQ(compatibility_finding(root_).level, Level::warning);
}

}  // namespace
}  // namespace infercluster::gpu
