// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>

#include "infercluster/infercluster.h"

namespace infercluster {
namespace {

class Environment : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const char* name : {"BACKEND", "DIRECT", "PAGE_CACHE", "MEMORY", "VERIFY", "SEAL_DIR", "LATENCY_TARGET"})
      ::unsetenv((std::string("INFERCLUSTER_") + name).c_str());
  }
  static void set(const char* name, const char* value) {
    ::setenv((std::string("INFERCLUSTER_") + name).c_str(), value, 1);
  }
};

TEST_F(Environment, LeavesTheDefaultsWhenNothingIsSet) {
  const auto options = options_from_environment();
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->verify, load::Verify::automatic);
  EXPECT_EQ(options->backend.choice, io::BackendChoice::automatic);
  EXPECT_EQ(options->memory, std::nullopt);
}

TEST_F(Environment, SetsEveryOption) {
  set("BACKEND", "threads");
  set("DIRECT", "never");
  set("PAGE_CACHE", "bypass");
  set("MEMORY", "64MiB");
  set("VERIFY", "always");
  set("SEAL_DIR", "/seals");
  set("LATENCY_TARGET", "20ms");
  const auto options = options_from_environment();
  ASSERT_TRUE(options.ok()) << options.error().to_string();
  EXPECT_EQ(options->backend.choice, io::BackendChoice::threads);
  EXPECT_EQ(options->direct, io::DirectPolicy::never);
  EXPECT_EQ(options->page_cache, load::PageCache::bypass);
  EXPECT_EQ(options->memory, 64U << 20);
  EXPECT_EQ(options->verify, load::Verify::always);
  EXPECT_EQ(options->seal_directory, "/seals");
  EXPECT_EQ(options->latency_target, std::chrono::milliseconds(20));
}

TEST_F(Environment, AWrongWordIsNamedWithTheVariableAndTheRightOnes) {
  set("DIRECT", "yes");
  const auto options = options_from_environment();
  ASSERT_FALSE(options.ok());
  const std::string text = options.error().to_string();
  EXPECT_NE(text.find("INFERCLUSTER_DIRECT"), std::string::npos) << text;
  EXPECT_NE(text.find("auto, always, never"), std::string::npos) << text;
  set("DIRECT", "");
  set("LATENCY_TARGET", "20");
  const auto without_unit = options_from_environment();
  ASSERT_FALSE(without_unit.ok());
  EXPECT_NE(without_unit.error().to_string().find("INFERCLUSTER_LATENCY_TARGET"), std::string::npos);
  set("LATENCY_TARGET", "");
  EXPECT_TRUE(options_from_environment().ok());
}

}  // namespace
}  // namespace infercluster
