// SPDX-License-Identifier: Apache-2.0
#include "target/object.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <span>

#include "base/units.h"
#include "checksum/crc32c.h"

namespace infercluster::target {
namespace {

constexpr std::uint64_t kPieceBytes = kMiB;

}  // namespace

Result<std::shared_ptr<const Object>> Object::open(const std::string& path) {
  const std::shared_ptr<Object> object(new Object);
  object->path_ = path;
  IC_TRY(object->fd_, os::open_for_reading(path));
  IC_TRY(object->identity_, os::identity_of(object->fd_));
  const std::uint64_t size = object->identity_.size;
  if (size == 0) {
    return Error(ErrorCode::invalid_argument, "the file is empty, and an object has at least one byte").with_path(path);
  }
  struct statfs system {};
  object->on_tmpfs_ = ::fstatfs(object->fd_.get(), &system) == 0 && system.f_type == TMPFS_MAGIC;
  object->map_ = os::SealedMap::of(object->fd_, size);
  if (object->map_) {
    object->verified_ = std::vector<std::atomic<std::uint64_t>>(align_up(size, 64 * kBlockBytes) / (64 * kBlockBytes));
  }
  object->block_crcs_.reserve(align_up(size, kBlockBytes) / kBlockBytes);
  std::vector<std::byte> piece(kPieceBytes);
  for (std::uint64_t offset = 0; offset < size; offset += kPieceBytes) {
    const std::uint64_t length = std::min(kPieceBytes, size - offset);
    const std::uint64_t padded = align_up(length, kBlockBytes);
    IC_CHECK(os::read_exactly(object->fd_, std::span(piece).first(length), offset, path));
    std::fill(piece.begin() + static_cast<std::ptrdiff_t>(length), piece.begin() + static_cast<std::ptrdiff_t>(padded),
              std::byte{0});
    for (std::uint64_t at = 0; at < padded; at += kBlockBytes) {
      object->block_crcs_.push_back(checksum::crc32c(std::span(piece).subspan(at, kBlockBytes)));
    }
  }
  IC_TRY(const os::FileIdentity after, os::identity_of(object->fd_));
  if (after != object->identity_) {
    return Error(ErrorCode::changed, "the file was written to while its checksums were taken")
        .with_path(path)
        .with_hint("Add it again once it is at rest");
  }
  return std::shared_ptr<const Object>(object);
}

}  // namespace infercluster::target
