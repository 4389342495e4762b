// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/referred_copy.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "base/units.h"
#include "checkpoint/snapshot.h"

namespace infercluster::checkpoint {
namespace {

constexpr std::uint64_t kBuffersBytes = 32 * kMiB;

Error damaged(const io::Directory& from, const manifest::Segment& segment, std::string message) {
  return Error(ErrorCode::corrupt, std::move(message))
      .with_path(from.path + "/" + segment.name)
      .with_hint("The file was changed after it was saved; the next save writes everything");
}

Status read_fully(io::FileCalls& calls, const io::Directory& from, const manifest::Segment& segment,
                  std::span<std::byte> to, std::uint64_t offset) {
  while (!to.empty()) {
    IC_TRY(const std::uint64_t count, calls.read_at(from, segment.name, to, offset));
    if (count == 0) return damaged(from, segment, "it ends at " + std::to_string(offset));
    to = to.subspan(count);
    offset += count;
  }
  return {};
}

}  // namespace

Status copy_referred(io::FileCalls& calls, const io::Directory& from, const manifest::Segment& segment, NewFile to,
                     const WriteOptions& options, std::atomic<std::uint64_t>& written) {
  SnapshotArenas buffers(kBuffersBytes);
  std::uint64_t begin = 0;
  const auto next = [&]() -> Result<std::optional<ImageWindow>> {
    if (begin == segment.bytes) return std::optional<ImageWindow>();
    ImageWindow window(begin, std::min(buffers.window_bytes(), segment.bytes - begin));
    IC_TRY(window.snapshot, buffers.acquire(align_up(window.bytes, memory::kArenaAlignment)));
    IC_CHECK(read_fully(calls, from, segment, window.snapshot.memory().first(window.bytes), begin));
    begin += window.bytes;
    return std::optional<ImageWindow>(std::move(window));
  };
  IC_TRY(const WrittenSegment copy, write_segment(calls, to.directory, to.name, segment.bytes, next, options, written));
  const auto [found, expected] = std::mismatch(copy.block_crcs.begin(), copy.block_crcs.end(),
                                               segment.block_crcs.begin(), segment.block_crcs.end());
  if (found == copy.block_crcs.end() && expected == segment.block_crcs.end()) return {};
  const auto block = static_cast<std::uint64_t>(found - copy.block_crcs.begin());
  return damaged(from, segment,
                 "the checksum of the 64 KiB at offset " + std::to_string(block * manifest::kBlockBytes) + " is wrong");
}

}  // namespace infercluster::checkpoint
