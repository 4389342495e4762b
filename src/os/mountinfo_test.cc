// SPDX-License-Identifier: Apache-2.0
#include "os/mountinfo.h"

#include <gtest/gtest.h>

namespace infercluster::os {
namespace {

TEST(Mountinfo, LinesAreCutApart) {
  const auto mounts = parse_mountinfo(
      "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw,errors=continue\n"
      "36 22 0:30 /a\\040b /mnt/c\\011d\\134 ro,noatime master:1 shared:7 - nfs4 server:/x\\040y rw,vers=4.2\n");
  ASSERT_EQ(mounts.size(), 2U);
  EXPECT_EQ(mounts[0].id, 22U);
  EXPECT_EQ(mounts[0].mount_point, "/");
  EXPECT_EQ(mounts[0].type, "ext4");
  EXPECT_EQ(mounts[0].source, "/dev/vda");
  EXPECT_EQ(mounts[0].options, "rw,relatime,rw,errors=continue");
  EXPECT_EQ(mounts[1].id, 36U);
  EXPECT_EQ(mounts[1].root, "/a b");
  EXPECT_EQ(mounts[1].mount_point, "/mnt/c\td\\");
  EXPECT_EQ(mounts[1].source, "server:/x y");
}

TEST(Mountinfo, WhatHasNotTheFormIsSkipped) {
  EXPECT_TRUE(parse_mountinfo("").empty());
  EXPECT_TRUE(parse_mountinfo("\n\nnonsense\n1 2 3:4 / / rw ext4 /dev/x rw\n").empty());
  EXPECT_TRUE(parse_mountinfo("x 1 254:0 / / rw - ext4 /dev/vda rw\n").empty());
  EXPECT_TRUE(parse_mountinfo("22 1 254:0 / / rw - ext4\n").empty());
  EXPECT_EQ(parse_mountinfo("bad\n22 1 254:0 / / rw - tmpfs none\nbad").size(), 1U);
}

TEST(Mountinfo, AnEscapeAtTheEndIsLeftAsItIs) {
  const auto mounts = parse_mountinfo("22 1 254:0 / /a\\04 rw - tmpfs none rw");
  ASSERT_EQ(mounts.size(), 1U);
  EXPECT_EQ(mounts[0].mount_point, "/a\\04");
}

}  // namespace
}  // namespace infercluster::os
