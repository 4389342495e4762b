// SPDX-License-Identifier: Apache-2.0
// What `infercluster doctor` says of GPUs, against the double. Without a driver: src/gpu/no_driver_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "infercluster/infercluster.h"
#include "load/synth.h"
#include "testing/gpu_double/control.h"
#include "testing/temp_dir.h"

namespace infercluster {
namespace {

using ::testing::HasSubstr;

class DiagnoseGpu : public ::testing::Test {
 protected:
  DiagnoseGpu() { control_.reset(); }

  [[nodiscard]] static const Finding* find(const std::vector<Finding>& findings, const std::string& subject) {
    const auto found = std::find_if(findings.begin(), findings.end(),
                                    [&](const Finding& finding) { return finding.subject == subject; });
    return found == findings.end() ? nullptr : &*found;
  }
  std::string make_model() {
    load::SynthOptions options;
    options.bytes = 1 << 20;
    EXPECT_TRUE(load::write_synthetic_repository(directory_.file("model"), options).ok());
    return directory_.file("model");
  }

  gpu_double::Control control_;
  testing::TempDir directory_;
};

TEST_F(DiagnoseGpu, EachFactHasItsConsequenceAndNoContextIsMade) {
  control_.set_plan("devices=3");
  const auto findings = diagnose(make_model());
  for (const char* const subject : {"NVIDIA driver", "GPU 0", "GPU 1", "GPU 2", "BAR1", "cuFile", "nvidia-fs",
                                    "GDS compatibility mode", "GDS file system"}) {
    const Finding* const finding = find(findings, subject);
    ASSERT_NE(finding, nullptr) << subject;
    EXPECT_FALSE(finding->state.empty()) << subject;
    EXPECT_FALSE(finding->consequence.empty()) << subject;
    if (finding->level == Finding::Level::warning) {
      EXPECT_FALSE(finding->remedy.empty()) << subject;
    }
  }
  for (const char* const counter :
       {"contexts_created:0", "contexts_created:1", "contexts_created:2", "cufile_driver_opens", "live"}) {
    EXPECT_EQ(control_.counter(counter), 0U) << counter;
  }
}

TEST_F(DiagnoseGpu, TheMountIsAskedForOnlyWithAPath) {
  EXPECT_EQ(find(diagnose(""), "GDS file system"), nullptr);
  EXPECT_EQ(find(diagnose(directory_.file("none")), "GDS file system"), nullptr);
}

TEST_F(DiagnoseGpu, ALevelSurvives) {
  control_.set_plan("cuDeviceGetCount:*=CUDA_ERROR_OPERATING_SYSTEM");
  const auto findings = diagnose("");
  const Finding* const driver = find(findings, "NVIDIA driver");
  ASSERT_NE(driver, nullptr);
  EXPECT_EQ(driver->level, Finding::Level::warning);
  EXPECT_THAT(driver->state, HasSubstr("CUDA_ERROR_OPERATING_SYSTEM"));
  EXPECT_EQ(find(findings, "GPU 0"), nullptr);
}

}  // namespace
}  // namespace infercluster
