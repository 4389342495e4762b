// SPDX-License-Identifier: Apache-2.0
#include "os/mount.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <system_error>

#include "base/units.h"
#include "os/file.h"
#include "os/mountinfo.h"
#include "os/text.h"

namespace infercluster::os {
namespace {

struct KnownFileSystem {
  std::uint32_t magic;
  const char* name;
  bool network;
  bool in_memory;
};

// Magic numbers: linux/magic.h, and for those outside of the kernel tree: statfs(2), coreutils' stat. FUSE counts as
// network: what is behind it is not known, and it is mostly a remote store.
constexpr std::array<KnownFileSystem, 25> kKnown{{
    {0x0000EF53, "ext4", false, false},     {0x58465342, "xfs", false, false},   {0x9123683E, "btrfs", false, false},
    {0xF2F52010, "f2fs", false, false},     {0x2FC12FC1, "zfs", false, false},   {0xCA451A4E, "bcachefs", false, false},
    {0x01021994, "tmpfs", false, true},     {0x858458F6, "ramfs", false, true},  {0x958458F6, "hugetlbfs", false, true},
    {0x00009FA0, "proc", false, true},      {0x62656572, "sysfs", false, true},  {0x794C7630, "overlay", false, false},
    {0x73717368, "squashfs", false, false}, {0xE0F5E1E2, "erofs", false, false}, {0x00009660, "iso9660", false, false},
    {0x00006969, "nfs", true, false},       {0x0BD00BD0, "lustre", true, false}, {0x47504653, "gpfs", true, false},
    {0x00C36400, "ceph", true, false},      {0x65735546, "fuse", true, false},   {0xFF534D42, "cifs", true, false},
    {0xFE534D42, "smb2", true, false},      {0x01021997, "9p", true, false},     {0x19830326, "beegfs", true, false},
    {0x20030528, "orangefs", true, false},
}};

std::string text_of_errno(int system_errno) {
  return std::error_code(system_errno, std::system_category()).message();
}

// statx(2) itself: not every C library that we build with has the direct-I/O fields in its own struct.
struct StatxAnswer {
  std::uint32_t mask;
  std::array<std::byte, 148> before_direct;  // stx_blksize up to stx_mnt_id
  std::uint32_t memory_alignment;            // stx_dio_mem_align
  std::uint32_t offset_alignment;            // stx_dio_offset_align
  std::array<std::byte, 96> rest;
};
static_assert(sizeof(StatxAnswer) == 256);
static_assert(offsetof(StatxAnswer, memory_alignment) == 0x98);
constexpr unsigned kStatxDirectAlignment = 0x2000;  // STATX_DIOALIGN, Linux 6.1

// Reads the start of the file through `fd` (O_DIRECT) into memory of exactly this alignment. 0, or the errno.
int try_direct_read(const Fd& fd, std::uint32_t memory_alignment, std::uint32_t length) {
  // Twice the largest candidate: inside is an address that is a multiple of the alignment, and of nothing larger.
  alignas(8192) std::array<std::byte, 16384> space{};
  const ssize_t count = ::pread(fd.get(), space.data() + memory_alignment, length, 0);
  return count < 0 ? errno : 0;
}

}  // namespace

Result<FileSystem> file_system_of(const Fd& fd) {
  struct statfs status {};
  if (::fstatfs(fd.get(), &status) != 0) return Error::from_errno(errno, "cannot ask for the file system");
  const auto magic = static_cast<std::uint32_t>(status.f_type);  // the sign differs by architecture
  for (const KnownFileSystem& known : kKnown) {
    if (known.magic == magic) return FileSystem{known.name, known.network, known.in_memory};
  }
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "0x%x", magic);
  return FileSystem{text.data(), false, false};
}

DirectLimits probe_direct_limits(const Fd& fd) {
  const auto direct = reopen_for_reading(fd, OpenMode::direct);
  if (!direct) {
    if (direct.error().system_errno() == EINVAL) return {.reason = "the file system refuses O_DIRECT at open"};
    return {.reason = direct.error().message()};
  }
  struct Candidate {
    std::uint32_t memory;
    std::uint32_t offset;
  };
  // An empty file accepts any alignment: only the safe figures may follow from it.
  const auto identity = identity_of(fd);
  const bool empty = !identity || identity->size == 0;
  for (const Candidate candidate : {Candidate{512, 512}, Candidate{4096, 512}, Candidate{4096, 4096}}) {
    if (empty && candidate.offset != 4096) continue;
    const int failed = try_direct_read(*direct, candidate.memory, candidate.offset);
    if (failed == 0) {
      return {.supported = true,
              .memory_alignment = candidate.memory,
              .offset_alignment = candidate.offset,
              .reason = "probed"};
    }
    if (failed != EINVAL) return {.reason = "a direct read failed: " + text_of_errno(failed)};
  }
  return {.reason = "the file system accepts O_DIRECT, but refuses direct reads"};
}

DirectLimits direct_limits_of(const Fd& fd) {
  StatxAnswer answer{};
  const long failed = ::syscall(SYS_statx, fd.get(), "", AT_EMPTY_PATH, kStatxDirectAlignment, &answer);
  if (failed != 0 || (answer.mask & kStatxDirectAlignment) == 0) return probe_direct_limits(fd);
  if (!is_power_of_two(answer.memory_alignment) || !is_power_of_two(answer.offset_alignment)) {
    return {.reason = "the file system has no direct I/O for this file"};
  }
  return {.supported = true,
          .memory_alignment = answer.memory_alignment,
          .offset_alignment = answer.offset_alignment,
          .reason = "statx"};
}

Result<Mount> mount_of(const Fd& fd) {
  constexpr std::uint64_t kMountinfoBytesMax = 64 * kMiB;
  IC_TRY(const std::string info, read_small_file("/proc/self/fdinfo/" + std::to_string(fd.get()), kMiB));
  IC_TRY(const std::string mounts, read_small_file("/proc/self/mountinfo", kMountinfoBytesMax));
  const auto id = number_of_key(info, "mnt_id:");
  if (!id) return Error(ErrorCode::unsupported, "/proc/self/fdinfo names no mount");
  for (MountLine& line : parse_mountinfo(mounts)) {
    if (line.id != *id) continue;
    return Mount{.mount_point = std::move(line.mount_point),
                 .device = std::move(line.source),
                 .type = std::move(line.type),
                 .options = std::move(line.options)};
  }
  return Error(ErrorCode::not_found, "mount " + std::to_string(*id) + " is not in /proc/self/mountinfo")
      .with_hint("The file was opened before the mount went, or in another mount namespace");
}

}  // namespace infercluster::os
