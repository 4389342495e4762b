// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "api/runtime.h"
#include "checksum/crc32c.h"
#include "infercluster/checkpoint_tools.h"
#include "infercluster/infercluster.h"
#include "load/scan.h"

namespace infercluster::checkpoint {
namespace {

using manifest::kBlockBytes;

// One that has bytes in this block; empty: it is the header.
std::string tensor_at(const manifest::Index& index, std::size_t segment, std::uint64_t block) {
  const std::uint64_t begin = block * kBlockBytes;
  for (const manifest::Chunk& chunk : index.chunks) {
    if (chunk.segment != segment || chunk.bytes == 0) continue;
    if (chunk.begin < begin + kBlockBytes && begin < chunk.begin + chunk.bytes) return chunk.tensor;
  }
  return {};
}

// Holds the bytes of a segment, which come in order, against its checksums.
class BlockCheck {
 public:
  explicit BlockCheck(const std::vector<std::uint32_t>& expected) : expected_(expected) {}

  void add(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const std::uint64_t take = std::min<std::uint64_t>(bytes.size(), kBlockBytes - filled_);
      crc_ = checksum::crc32c(bytes.first(take), crc_);
      filled_ += take;
      bytes = bytes.subspan(take);
      if (filled_ == kBlockBytes) end_block();
    }
  }
  void finish() {
    if (filled_ > 0) end_block();
  }
  [[nodiscard]] std::uint64_t bad_blocks() const { return bad_blocks_; }
  [[nodiscard]] std::uint64_t first_bad() const { return first_bad_; }  // where there is one

 private:
  void end_block() {
    if (block_ >= expected_.size() || crc_ != expected_[block_]) {
      if (bad_blocks_++ == 0) first_bad_ = block_;
    }
    ++block_;
    crc_ = 0;
    filled_ = 0;
  }

  const std::vector<std::uint32_t>& expected_;
  std::uint64_t block_ = 0;
  std::uint64_t filled_ = 0;
  std::uint32_t crc_ = 0;
  std::uint64_t bad_blocks_ = 0;
  std::uint64_t first_bad_ = 0;
};

class Verification {
 public:
  Verification(load::Scanner& scanner, const Checkpoint& checkpoint, const WorkProgress& progress)
      : scanner_(scanner), checkpoint_(checkpoint), progress_(progress) {
    for (const manifest::Index& index : checkpoint.indexes()) {
      for (const manifest::Segment& segment : index.segments) total_ += segment.bytes;
    }
  }

  Result<SegmentVerdict> check(const manifest::Index& index, std::size_t number) {
    const manifest::Segment& segment = index.segments[number];
    SegmentVerdict verdict;
    verdict.path = checkpoint_.path() + "/" + segment.name;
    BlockCheck blocks(segment.block_crcs);
    const auto visit = [&](std::span<const std::byte> bytes) -> Status {
      blocks.add(bytes);
      verdict.bytes += bytes.size();
      done_ += bytes.size();
      return {};
    };
    const auto scanned = scanner_.scan(verdict.path, visit, [&] { return !progress_ || progress_(done_, total_); });
    if (!scanned.ok() && scanned.error().code() == ErrorCode::cancelled) return scanned.error();
    blocks.finish();
    if (scanned.ok()) verdict.mode = io::name_of(scanned->mode);
    verdict.bad_blocks = blocks.bad_blocks();
    if (!scanned.ok()) {
      verdict.first_error = scanned.error();
    } else if (verdict.bytes != segment.bytes) {
      verdict.first_error = Error(ErrorCode::corrupt, "expected " + std::to_string(segment.bytes) + " bytes, found " +
                                                          std::to_string(verdict.bytes))
                                .with_path(verdict.path);
    } else if (verdict.bad_blocks > 0) {
      verdict.first_error = bad_block(index, number, verdict, blocks.first_bad());
    }
    return verdict;
  }

 private:
  static Error bad_block(const manifest::Index& index, std::size_t number, const SegmentVerdict& verdict,
                         std::uint64_t block) {
    return Error(ErrorCode::corrupt,
                 "the bytes are not those that were saved: the checksums of " + std::to_string(verdict.bad_blocks) +
                     " of " + std::to_string(index.segments[number].block_crcs.size()) + " blocks differ, first here")
        .with_path(verdict.path)
        .with_offset(block * kBlockBytes)
        .with_tensor(tensor_at(index, number, block))
        .with_hint("The storage changed them; use another checkpoint");
  }

  load::Scanner& scanner_;
  const Checkpoint& checkpoint_;
  const WorkProgress& progress_;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace

bool VerifyReport::good() const {
  return std::none_of(segments.begin(), segments.end(),
                      [](const SegmentVerdict& segment) { return segment.first_error.has_value(); });
}

Result<VerifyReport> verify(const Checkpoint& checkpoint, const WorkProgress& progress) {
  IC_TRY(const api::Runtime* const runtime, api::Runtime::get());
  const Clock::TimePoint start = steady_clock().now();
  IC_TRY(const load::Options options, options_from_environment());
  IC_TRY(const auto scanner, load::Scanner::open({options.direct, options.backend}, runtime->environment()));
  Verification verification(*scanner, checkpoint, progress);
  VerifyReport report;
  for (const manifest::Index& index : checkpoint.indexes()) {
    for (std::size_t i = 0; i < index.segments.size(); ++i) {
      IC_TRY(SegmentVerdict verdict, verification.check(index, i));
      report.bytes += verdict.bytes;
      report.segments.push_back(std::move(verdict));
    }
  }
  report.seconds = seconds_between(start, steady_clock().now());
  return report;
}

}  // namespace infercluster::checkpoint
