// SPDX-License-Identifier: Apache-2.0
// A machine without a driver: everything says so, once and clearly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "gpu/cufile.h"
#include "gpu/device.h"
#include "gpu/driver.h"
#include "gpu/gds_findings.h"
#include "gpu/library.h"
#include "testing/child.h"
#include "testing/temp_dir.h"

namespace infercluster::gpu {
namespace {

using ::testing::HasSubstr;

// Before anything asks: this program's environment has neither library.
const bool kNoLibraries = [] {
  return ::setenv("INFERCLUSTER_LIBCUDA", "", 1) == 0 && ::setenv("INFERCLUSTER_LIBCUFILE", "", 1) == 0;
}();

TEST(NoDriver, EveryWayInGivesTheSameClearError) {
  ASSERT_TRUE(kNoLibraries);
  const auto found = driver();
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code(), ErrorCode::unsupported);
  EXPECT_THAT(found.error().message(), HasSubstr("there is no NVIDIA driver"));
  EXPECT_THAT(found.error().hint(), HasSubstr("Load to host memory"));
  EXPECT_EQ(device_count().error().message(), found.error().message());
  EXPECT_EQ(Device::open(0).error().message(), found.error().message());
}

TEST(NoDriver, ALibraryThatIsNotThereIsNamed) {
  const auto loaded = Driver::load("/nowhere/libcuda.so.1");
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code(), ErrorCode::unsupported);
  EXPECT_THAT(loaded.error().message(), HasSubstr("/nowhere/libcuda.so.1"));
}

TEST(NoDriver, ALibraryThatIsNoneIsRefused) {
  const auto loaded = Driver::load("libc.so.6");
  ASSERT_FALSE(loaded.ok());
  EXPECT_THAT(loaded.error().message(), HasSubstr("libc.so.6 is no NVIDIA driver"));
}

TEST(NoDriver, AFailureIsRememberedAndOthersAskAgainInVain) {
  ASSERT_FALSE(driver().ok());
  ASSERT_EQ(::setenv("INFERCLUSTER_LIBCUDA", "libc.so.6", 1), 0);
  EXPECT_THAT(driver().error().message(), HasSubstr("switched off by the environment"));
  ASSERT_EQ(::setenv("INFERCLUSTER_LIBCUDA", "", 1), 0);
}

TEST(NoDriver, CuFileIsNotThereEither) {
  const Status found = cufile_found();
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code(), ErrorCode::unsupported);
  EXPECT_THAT(found.error().message(), HasSubstr("there is no cuFile"));
  EXPECT_THAT(found.error().hint(), HasSubstr("pinned host memory"));
  EXPECT_EQ(cufile_version_text(), "");
}

TEST(NoDriver, AForkedChildIsToldThatCudaDoesNotSurvive) {
  static_cast<void>(driver());
  const int answer = testing::in_child([] {
    const auto found = driver();
    if (found.ok() || may_call_driver()) return 1;
    return found.error().message().find("fork") != std::string::npos ? 0 : 2;
  });
  EXPECT_EQ(answer, 0);
}

TEST(Library, TheEnvironmentDecidesEvenWhenItIsEmpty) {
  ASSERT_EQ(::unsetenv("INFERCLUSTER_TEST_LIBRARY"), 0);
  EXPECT_EQ(library_name("INFERCLUSTER_TEST_LIBRARY", "libx.so.1"), "libx.so.1");
  ASSERT_EQ(::setenv("INFERCLUSTER_TEST_LIBRARY", "", 1), 0);
  EXPECT_EQ(library_name("INFERCLUSTER_TEST_LIBRARY", "libx.so.1"), "");
  ASSERT_EQ(::setenv("INFERCLUSTER_TEST_LIBRARY", "/a/b.so", 1), 0);
  EXPECT_EQ(library_name("INFERCLUSTER_TEST_LIBRARY", "libx.so.1"), "/a/b.so");
}

TEST(CudaVersion, IsSpelledAsNvidiaDoes) {
  EXPECT_EQ(cuda_version_text(12040), "12.4");
  EXPECT_EQ(cuda_version_text(13050), "13.5");
  EXPECT_EQ(cuda_version_text(11080), "11.8");
}

TEST(NumaNode, ComesFromSysfsAndMayBeUnknown) {
  const testing::TempDir root;
  const std::string slash = root.path().string() + "/";
  root.write("sys/bus/pci/devices/0000:0b:00.0/numa_node", "1\n");
  root.write("sys/bus/pci/devices/0000:0c:00.0/numa_node", "-1\n");
  EXPECT_EQ(numa_node_of_pci_device("0000:0b:00.0", slash), 1);
  EXPECT_EQ(numa_node_of_pci_device("0000:0c:00.0", slash), std::nullopt);
  EXPECT_EQ(numa_node_of_pci_device("0000:0d:00.0", slash), std::nullopt);
}

TEST(NoDriver, DoctorSaysItInOneFinding) {
  const auto findings = gds_findings();
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].subject, "NVIDIA driver");
  EXPECT_EQ(findings[0].level, GdsFinding::Level::note);
  EXPECT_THAT(findings[0].state, HasSubstr("there is no NVIDIA driver"));
  EXPECT_THAT(findings[0].consequence, HasSubstr("host memory"));
  EXPECT_FALSE(findings[0].remedy.empty());
}

}  // namespace
}  // namespace infercluster::gpu
