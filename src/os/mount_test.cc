// SPDX-License-Identifier: Apache-2.0
#include "os/mount.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>

#include "base/units.h"
#include "os/file.h"
#include "testing/child.h"
#include "testing/temp_dir.h"

namespace infercluster::os {
namespace {

using testing::in_child;
using testing::refuse;
using testing::TempDir;

struct FreeDeleter {
  void operator()(void* memory) const { std::free(memory); }
};

TEST(FileSystem, InMemoryAndNamed) {
  const Fd memory(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_TRUE(memory.valid());
  const FileSystem system = file_system_of(memory).value();
  EXPECT_EQ(system.name, "tmpfs");
  EXPECT_TRUE(system.in_memory);
  EXPECT_FALSE(system.network);
  const auto process = open_for_reading("/proc/self/status");
  ASSERT_TRUE(process);
  EXPECT_EQ(file_system_of(*process).value().name, "proc");
  EXPECT_FALSE(file_system_of(Fd()));
}

TEST(DirectLimits, TheirFiguresReallyWork) {
  const TempDir dir;
  const auto fd = open_for_reading(dir.write("a", std::string(64 * kKiB, 'x')));
  ASSERT_TRUE(fd);
  const DirectLimits limits = direct_limits_of(*fd);
  ASSERT_FALSE(limits.reason.empty());
  if (!limits.supported) GTEST_SKIP() << "no direct I/O here: " << limits.reason;
  ASSERT_TRUE(is_power_of_two(limits.memory_alignment));
  ASSERT_TRUE(is_power_of_two(limits.offset_alignment));
  const auto direct = reopen_for_reading(*fd, OpenMode::direct);
  ASSERT_TRUE(direct) << direct.error().to_string();
  const std::unique_ptr<void, FreeDeleter> space(std::aligned_alloc(64 * kKiB, 64 * kKiB));
  auto* const memory = static_cast<std::byte*>(space.get()) + limits.memory_alignment;
  ASSERT_TRUE(read_exactly(*direct, {memory, limits.offset_alignment}, limits.offset_alignment, "a"));
  EXPECT_EQ(memory[limits.offset_alignment - 1], std::byte{'x'});
}

TEST(DirectLimits, ProcHasNoneAndSaysWhy) {
  const auto fd = open_for_reading("/proc/self/status");
  ASSERT_TRUE(fd);
  const DirectLimits limits = direct_limits_of(*fd);
  EXPECT_FALSE(limits.supported);
  EXPECT_NE(limits.reason.find("O_DIRECT"), std::string::npos) << limits.reason;
}

TEST(DirectLimits, ProbingAndStatxAgree) {
  const TempDir dir;
  const auto fd = open_for_reading(dir.write("a", std::string(64 * kKiB, 'x')));
  ASSERT_TRUE(fd);
  const DirectLimits asked = direct_limits_of(*fd);
  const DirectLimits probed = probe_direct_limits(*fd);
  ASSERT_EQ(probed.supported, asked.supported) << asked.reason << " / " << probed.reason;
  if (!asked.supported) GTEST_SKIP() << "no direct I/O here: " << asked.reason;
  EXPECT_EQ(probed.reason, "probed");
  EXPECT_GE(probed.offset_alignment, asked.offset_alignment);
  EXPECT_LE(probed.offset_alignment, 4096U);
}

TEST(DirectLimits, AnEmptyFileGivesTheSafeFigures) {
  const TempDir dir;
  const auto fd = open_for_reading(dir.write("a", ""));
  ASSERT_TRUE(fd);
  const DirectLimits probed = probe_direct_limits(*fd);
  if (!probed.supported) GTEST_SKIP() << "no direct I/O here: " << probed.reason;
  EXPECT_EQ(probed.offset_alignment, 4096U);
  EXPECT_EQ(probed.memory_alignment, 4096U);
}

TEST(DirectLimits, WhatIsRefusedAtOpenOrAtTheFirstReadIsNotSupported) {
  const TempDir dir;
  const auto fd = open_for_reading(dir.write("a", std::string(64 * kKiB, 'x')));
  ASSERT_TRUE(fd);
  if (!direct_limits_of(*fd).supported) GTEST_SKIP() << "no direct I/O here";
  const auto statx_is_old = [] {
    refuse({.number = SYS_statx, .system_errno = ENOSYS, .argument = 3, .mask = ~0U, .value = 0x2000});
  };
  EXPECT_EQ(in_child([&] {
              statx_is_old();
              return direct_limits_of(*fd).reason == "probed" ? 0 : 1;
            }),
            0);
  EXPECT_EQ(
      in_child([&] {
        statx_is_old();
        refuse({.number = SYS_openat, .system_errno = EINVAL, .argument = 2, .mask = O_DIRECT, .value = O_DIRECT});
        const DirectLimits limits = direct_limits_of(*fd);
        return !limits.supported && limits.reason == "the file system refuses O_DIRECT at open" ? 0 : 1;
      }),
      0);
  EXPECT_EQ(in_child([&] {
              statx_is_old();
              refuse({.number = SYS_pread64, .system_errno = EINVAL});
              const DirectLimits limits = direct_limits_of(*fd);
              return !limits.supported && limits.reason.ends_with("refuses direct reads") ? 0 : 1;
            }),
            0);
  EXPECT_EQ(in_child([&] {
              statx_is_old();
              refuse({.number = SYS_pread64, .system_errno = EIO});
              const DirectLimits limits = direct_limits_of(*fd);
              return !limits.supported && limits.reason.starts_with("a direct read failed") ? 0 : 1;
            }),
            0);
}

TEST(Mount, HoldsTheFile) {
  const TempDir dir;
  const std::string path = dir.write("a", "x");
  const auto fd = open_for_reading(path);
  ASSERT_TRUE(fd);
  const auto mount = mount_of(*fd);
  ASSERT_TRUE(mount) << mount.error().to_string();
  EXPECT_TRUE(path.starts_with(mount->mount_point)) << mount->mount_point;
  EXPECT_FALSE(mount->type.empty());
  EXPECT_FALSE(mount->device.empty());
  EXPECT_TRUE(mount->options.starts_with("rw")) << mount->options;
  const auto process = open_for_reading("/proc/self/status");
  ASSERT_TRUE(process);
  EXPECT_EQ(mount_of(*process).value().mount_point, "/proc");
}

TEST(Mount, AFileOfNoVisibleMountIsAnError) {
  const Fd memory(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_TRUE(memory.valid());
  EXPECT_EQ(mount_of(memory).error().code(), ErrorCode::not_found);
}

}  // namespace
}  // namespace infercluster::os
