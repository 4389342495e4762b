// SPDX-License-Identifier: Apache-2.0
// A build without liburing: this program has uring_missing.cc in the place of uring_backend.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/backend.h"

namespace infercluster::io {
namespace {

using ::testing::HasSubstr;

TEST(WithoutUring, ThreadsReadAndTheReasonIsTheBuild) {
  const auto chosen = open_backend({});
  ASSERT_TRUE(chosen.ok()) << chosen.error().to_string();
  EXPECT_EQ(chosen->backend->name(), "threads");
  EXPECT_THAT(chosen->reason, HasSubstr("left out of this build"));
}

TEST(WithoutUring, ItIsRefusedWhereItIsDemanded) {
  BackendOptions options;
  options.choice = BackendChoice::uring;
  const auto chosen = open_backend(options);
  ASSERT_FALSE(chosen.ok());
  EXPECT_EQ(chosen.error().code(), ErrorCode::unsupported);
  EXPECT_THAT(chosen.error().hint(), HasSubstr("liburing"));
  EXPECT_FALSE(probe_uring().ok());
}

}  // namespace
}  // namespace infercluster::io
