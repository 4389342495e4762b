// SPDX-License-Identifier: Apache-2.0
#include "pfs/layout.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>

#include "base/units.h"
#include "pfs/wire.h"

namespace infercluster::pfs {
namespace {

constexpr std::uint64_t kStripeBytes = 4 * kMiB;
constexpr std::uint64_t kBytesPerStripe = 256 * kMiB;  // below this, one more stripe is not worth its lock
constexpr std::uint32_t kStripesMax = 8;
constexpr std::uint32_t kStripesMaxOfMany = 4;  // where this many files share the targets:
constexpr unsigned kManyFiles = 32;
constexpr std::uint64_t kCephObjectBytes = 16 * kMiB;

struct Known {
  std::uint32_t magic;
  Kind kind;
};
constexpr std::array kKnown{
    Known{0x0BD00BD0, Kind::lustre},        Known{0x47504653, Kind::gpfs},
    Known{0x00C36400, Kind::cephfs},        Known{0x00006969, Kind::nfs},
    Known{0x01021994, Kind::memory},        Known{0x858458F6, Kind::memory},
    Known{0xFF534D42, Kind::other_network}, Known{0xFE534D42, Kind::other_network},
    Known{0x01021997, Kind::other_network}, Known{0x19830326, Kind::other_network},
    Known{0x20030528, Kind::other_network},
};
constexpr std::uint32_t kFuse = 0x65735546;

// The layout cannot be had; the file can be written.
void refuse(Layout& layout, const Error& error) {
  layout.chosen = false;
  layout.note = error.message();
  if (error.system_errno() == EPERM || error.system_errno() == EACCES)
    layout.note += "; the administrator must allow it, or set a layout on the directory";
}

bool means_no_space(const Error& error) {
  const int code = error.system_errno();
  return code == ENOSPC || code == EDQUOT || code == EFBIG || code == EIO || code == EROFS;
}

Status lay_out_lustre(const Fd& fd, Layout& layout, Calls& calls) {
  const std::string bytes = encode_lustre({.stripe_bytes = static_cast<std::uint32_t>(layout.stripe_bytes),
                                           .stripe_count = static_cast<std::uint16_t>(layout.stripe_count),
                                           .pool = layout.pool});
  Status status = calls.set_xattr(fd, kLustreLayoutName, bytes);
  // Clients before 2.0 know the ioctl only.
  if (!status.ok() && status.error().system_errno() == EOPNOTSUPP) status = calls.ioctl(fd, kLustreSetStripe, bytes);
  return status;
}

Status lay_out_ceph(const Fd& fd, Layout& layout, Calls& calls) {
  // In one step: field by field, what stands in between may be no valid layout (an object is a multiple of the unit).
  std::string text = "stripe_unit=" + std::to_string(layout.stripe_bytes) +
                     " stripe_count=" + std::to_string(layout.stripe_count) +
                     " object_size=" + std::to_string(layout.object_bytes);
  if (!layout.pool.empty()) text += " pool=" + layout.pool;
  return calls.set_xattr(fd, "ceph.file.layout", text);
}

Status lay_out_gpfs(const Fd& fd, const Wish& wish, Layout& layout, Calls& calls) {
  if (wish.file_bytes == 0) return {};
  IC_CHECK(calls.gpfs_prealloc(fd, 0, static_cast<std::int64_t>(wish.file_bytes)));
  layout.preallocated_bytes = wish.file_bytes;
  layout.chosen = true;
  // Only a hint, and an old daemon may not know it.
  const Status hinted = calls.gpfs_fcntl(fd, encode_gpfs_write_hint(wish.file_bytes));
  if (!hinted.ok()) layout.note = hinted.error().message();
  return {};
}

Result<std::uint64_t> number_of(const Fd& fd, const char* name, Calls& calls) {
  IC_TRY(const std::string text, calls.get_xattr(fd, name));
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    return Error(ErrorCode::corrupt, std::string(name) + " is no number: " + text);
  return value;
}

bool is_directory(const Fd& fd) {
  struct stat status {};
  return ::fstat(fd.get(), &status) == 0 && S_ISDIR(status.st_mode);
}

Status read_ceph(const Fd& fd, Layout& layout, Calls& calls) {
  const std::string prefix = is_directory(fd) ? "ceph.dir.layout." : "ceph.file.layout.";
  const auto stripe_bytes = number_of(fd, (prefix + "stripe_unit").c_str(), calls);
  if (!stripe_bytes.ok() && stripe_bytes.error().system_errno() == ENODATA) {
    layout.note = "the directory has no layout of its own, and takes its parent's";
    return {};
  }
  IC_CHECK(stripe_bytes);
  layout.stripe_bytes = *stripe_bytes;
  IC_TRY(const auto stripe_count, number_of(fd, (prefix + "stripe_count").c_str(), calls));
  layout.stripe_count = static_cast<std::uint32_t>(stripe_count);
  IC_TRY(layout.object_bytes, number_of(fd, (prefix + "object_size").c_str(), calls));
  IC_TRY(layout.pool, calls.get_xattr(fd, (prefix + "pool").c_str()));
  return {};
}

Status read_lustre(const Fd& fd, Layout& layout, Calls& calls) {
  const auto bytes = calls.get_xattr(fd, kLustreLayoutName);
  if (!bytes.ok() && bytes.error().system_errno() == ENODATA) {
    layout.note = "no layout of its own: the file system's default";
    return {};
  }
  IC_CHECK(bytes);
  IC_TRY(const auto components, decode_lustre(*bytes));
  const LustreStripes& last = components.back().stripes;
  layout.stripe_bytes = last.stripe_bytes;
  layout.stripe_count = last.stripe_count;
  layout.pool = last.pool;
  if (components.size() > 1)
    layout.note = "a layout of " + std::to_string(components.size()) + " components; this is its last";
  return {};
}

Status lay_out(const Fd& fd, const Wish& wish, Layout& layout, Calls& calls) {
  switch (layout.kind) {
    case Kind::lustre:
      return lay_out_lustre(fd, layout, calls);
    case Kind::cephfs:
      return lay_out_ceph(fd, layout, calls);
    case Kind::gpfs:
      return lay_out_gpfs(fd, wish, layout, calls);
    default:
      return {};
  }
}

}  // namespace

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::local:
      return "local";
    case Kind::memory:
      return "memory";
    case Kind::nfs:
      return "nfs";
    case Kind::lustre:
      return "lustre";
    case Kind::gpfs:
      return "gpfs";
    case Kind::cephfs:
      return "cephfs";
    case Kind::other_network:
      return "network";
  }
  return "unknown";
}

Kind kind_of(std::uint32_t magic, std::string_view mount_type) {
  for (const Known& known : kKnown)
    if (known.magic == magic) return known.kind;
  if (magic != kFuse) return Kind::local;
  return mount_type == "fuse.ceph-fuse" || mount_type == "fuse.ceph" ? Kind::cephfs : Kind::other_network;
}

Result<FileSystem> identify(const Fd& fd, Calls& calls) {
  IC_TRY(const StatFs status, calls.stat_fs(fd));
  const auto mount = calls.mount(fd);
  return FileSystem{kind_of(status.magic, mount.ok() ? mount->type : std::string()), status.block_bytes};
}

std::string describe(const Layout& layout) {
  std::string text(name_of(layout.kind));
  if (layout.stripe_count == 0xFFFF) {
    text += ", stripes of " + format_bytes(layout.stripe_bytes) + " over all targets";
  } else if (layout.stripe_count > 0) {
    text += ", " + std::to_string(layout.stripe_count) + (layout.stripe_count == 1 ? " stripe of " : " stripes of ") +
            format_bytes(layout.stripe_bytes);
  } else if (layout.stripe_bytes > 0) {
    text += ", blocks of " + format_bytes(layout.stripe_bytes);
  }
  if (layout.object_bytes > 0) text += ", objects of " + format_bytes(layout.object_bytes);
  if (!layout.pool.empty()) text += ", pool " + layout.pool;
  if (layout.preallocated_bytes > 0) text += ", " + format_bytes(layout.preallocated_bytes) + " preallocated";
  if (!layout.note.empty()) text += " (" + layout.note + ")";
  return text;
}

Layout plan_layout(const FileSystem& system, const Wish& wish) {
  Layout layout{.kind = system.kind};
  if (system.kind == Kind::gpfs) layout.stripe_bytes = system.block_bytes;
  if (system.kind != Kind::lustre && system.kind != Kind::cephfs) return layout;
  const std::uint32_t most = wish.files_at_once >= kManyFiles ? kStripesMaxOfMany : kStripesMax;
  const std::uint64_t wanted = wish.file_bytes / kBytesPerStripe + (wish.file_bytes % kBytesPerStripe > 0 ? 1 : 0);
  // A length that is not known is a large one.
  layout.stripe_count =
      wish.file_bytes == 0 ? most : static_cast<std::uint32_t>(std::clamp<std::uint64_t>(wanted, 1, most));
  if (wish.stripe_count > 0) layout.stripe_count = std::min<std::uint32_t>(wish.stripe_count, kLustreStripesMax);
  layout.stripe_bytes = wish.stripe_bytes == 0 ? kStripeBytes : align_up(wish.stripe_bytes, kLustreStripeUnit);
  if (system.kind == Kind::cephfs) {
    const std::uint64_t units = kCephObjectBytes / layout.stripe_bytes;
    layout.object_bytes = layout.stripe_bytes * std::max<std::uint64_t>(units, 1);
  }
  layout.pool = wish.pool;
  layout.chosen = true;
  return layout;
}

Result<Created> create(const Fd& directory, const std::string& name, const Wish& wish, int flags, Calls& calls) {
  constexpr mode_t kMode = 0666;
  IC_TRY(const FileSystem system, identify(directory, calls));
  if (system.kind == Kind::lustre && wish.pool.size() > kLustrePoolBytesMax)
    return Error(ErrorCode::invalid_argument, "the pool's name \"" + wish.pool + "\" has more than 15 bytes");
  Layout layout = plan_layout(system, wish);
  // O_LOV_DELAY_CREATE: Lustre makes the file's objects when the layout is set, or at the first write.
  const int delay = system.kind == Kind::lustre ? O_NOCTTY | FASYNC : 0;
  IC_TRY(Fd fd, calls.create(directory, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | delay | flags, kMode));
  const Status status = lay_out(fd, wish, layout, calls);
  if (!status.ok() && means_no_space(status.error())) {
    (void)::unlinkat(directory.get(), name.c_str(), 0);
    Error error = status.error();
    return std::move(error).with_path(name);
  }
  if (!status.ok()) refuse(layout, status.error());
  auto found = read_layout(fd, calls);
  if (!found.ok()) {
    refuse(layout, found.error());
    return Created{std::move(fd), Layout{.kind = layout.kind, .note = layout.note}};
  }
  found->preallocated_bytes = layout.preallocated_bytes;
  found->chosen = layout.chosen;
  if (!layout.note.empty()) found->note = layout.note;
  return Created{std::move(fd), std::move(*found)};
}

Result<Layout> read_layout(const Fd& fd, Calls& calls) {
  IC_TRY(const FileSystem system, identify(fd, calls));
  Layout layout{.kind = system.kind};
  if (system.kind == Kind::lustre) {
    IC_CHECK(read_lustre(fd, layout, calls));
  }
  if (system.kind == Kind::cephfs) {
    IC_CHECK(read_ceph(fd, layout, calls));
  }
  if (system.kind == Kind::gpfs) layout.stripe_bytes = system.block_bytes;
  return layout;
}

}  // namespace infercluster::pfs
