// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/names.h"

#include <gtest/gtest.h>

namespace infercluster::checkpoint {
namespace {

constexpr char kId[] = "0123456789abcdef";

TEST(Names, AreReadBackAsTheyWereMade) {
  EXPECT_EQ(step_name(100), "step-100");
  EXPECT_EQ(parse_step_name("step-100"), 100U);
  EXPECT_EQ(parse_step_name("step-0"), 0U);
  EXPECT_EQ(epoch_of_file(segment_name({3, 12}, 1)), 12U);
  EXPECT_EQ(epoch_of_file(index_name({3, 12})), 12U);
  EXPECT_EQ(epoch_of_file("COMMIT"), 0U);
  EXPECT_EQ(epoch_of_file(commit_name(7)), 7U);
  EXPECT_EQ(epoch_of_file(commit_temporary_name(7)), 7U);
  EXPECT_EQ(epoch_of_file(mark_name(7, kId)), 7U);
  EXPECT_EQ(epoch_of_file(progress_name({3, 7}, 1, 4096)), 7U);
  EXPECT_EQ(parse_progress_name(progress_name({3, 7}, 1, 4096), {3, 7}, 1), 4096U);
  EXPECT_FALSE(parse_progress_name(progress_name({3, 7}, 1, 4096), {3, 8}, 1));
  EXPECT_FALSE(parse_progress_name(progress_name({3, 7}, 1, 4096), {3, 7}, 0));
  EXPECT_EQ(epoch_of_commit("COMMIT.7"), 7U);
  EXPECT_TRUE(is_trash_name(trash_name(100, kId)));
}

TEST(Names, WhatAnotherMadeIsNotOurs) {
  for (const char* name :
       {"step-", "step-01", "step-1x", "step--1", "Step-1", "step-99999999999999999999", "step-1 "}) {
    EXPECT_FALSE(parse_step_name(name)) << name;
  }
  for (const char* name :
       {"", "COMMIT.", "COMMIT.01", "COMMIT.tmp", "COMMIT.1.bak", "node-.0.1.safetensors", "node-0.0.safetensors",
        "node-0.0.1.safetensors.old", "node-0.0.1.2.safetensors", "node-0.index.json", "model.safetensors",
        ".save-1-xyz", ".metadata", ".copied-1.0.1", ".copied-1.0.1-", ".copied-1.0.1-07"}) {
    EXPECT_FALSE(epoch_of_file(name)) << name;
  }
  for (const char* name : {".trash", ".trash-step-1", ".trash-step-1-", ".trash-1-0123456789abcdef",
                           ".trash-step-1-0123456789abcdeF", ".trash-step-1-0123456789abcdef0"}) {
    EXPECT_FALSE(is_trash_name(name)) << name;
  }
}

}  // namespace
}  // namespace infercluster::checkpoint
