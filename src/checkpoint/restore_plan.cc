// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/restore_plan.h"

#include <algorithm>
#include <map>

namespace infercluster::checkpoint {
namespace {

using manifest::kBlockBytes;

std::vector<Window> windows_of(const SegmentReads& reads, std::uint64_t window_bytes) {
  std::vector<bool> needed(reads.segment->block_crcs.size());
  for (const auto& [copy, target] : reads.copies) {
    for (std::uint64_t row = 0; row < copy.rows(); ++row) {
      const std::uint64_t begin = copy.file_offset(row);
      const std::uint64_t last = (begin + copy.row_bytes() - 1) / kBlockBytes;
      for (std::uint64_t block = begin / kBlockBytes; block <= last; ++block) needed[block] = true;
    }
  }
  std::vector<Window> windows;
  for (std::uint64_t block = 0; block < needed.size(); ++block) {
    if (!needed[block]) continue;
    const std::uint64_t begin = block * kBlockBytes;
    const std::uint64_t end = begin + std::min(kBlockBytes, reads.segment->bytes - begin);
    if (!windows.empty() && windows.back().end == begin && end - windows.back().begin <= window_bytes)
      windows.back().end = end;
    else
      windows.push_back({begin, end});
  }
  return windows;
}

// Chunks that share bytes of a file: no writer of ours makes them, and copies are found by their order.
bool chunks_overlap(const std::vector<TargetCopy>& sorted) {
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const BoxCopy& last = sorted[i - 1].box;
    const BoxCopy& next = sorted[i].box;
    const bool same = next.chunk_begin() == last.chunk_begin() && next.chunk_end() == last.chunk_end();
    if (!same && next.chunk_begin() < last.chunk_end()) return true;
  }
  return false;
}

}  // namespace

Result<std::vector<SegmentReads>> plan_reads(const Checkpoint& checkpoint, std::span<const Target> targets,
                                             std::uint64_t window_bytes) {
  std::map<SegmentId, SegmentReads> by_segment;
  for (const Target& target : targets) {
    for (const StoredTensor::Part& part : checkpoint.tensors().at(target.piece.tensor).parts) {
      const manifest::Index& index = checkpoint.indexes()[part.index];
      const manifest::Chunk& chunk = index.chunks[part.chunk];
      IC_TRY(auto copy, BoxCopy::between(chunk, target.piece.box, target.strides));
      if (!copy || copy->row_bytes() == 0) continue;
      const SegmentId id{part.index, chunk.segment};
      SegmentReads& reads = by_segment[id];
      reads.id = id;
      reads.segment = &index.segments[chunk.segment];
      reads.copies.push_back({*std::move(copy), &target});
    }
  }
  std::vector<SegmentReads> all;
  for (auto& [key, reads] : by_segment) {
    std::stable_sort(reads.copies.begin(), reads.copies.end(), [](const TargetCopy& a, const TargetCopy& b) {
      return a.box.chunk_begin() < b.box.chunk_begin();
    });
    if (chunks_overlap(reads.copies)) {
      return Error(ErrorCode::corrupt, "chunks of " + reads.segment->name + " overlap in the file")
          .with_path(checkpoint.path());
    }
    reads.windows = windows_of(reads, window_bytes);
    all.push_back(std::move(reads));
  }
  return all;
}

std::vector<SegmentReads> plan_whole_reads(const Checkpoint& checkpoint, std::uint64_t window_bytes) {
  std::vector<SegmentReads> all;
  for (std::size_t i = 0; i < checkpoint.indexes().size(); ++i) {
    const manifest::Index& index = checkpoint.indexes()[i];
    for (std::size_t k = 0; k < index.segments.size(); ++k) {
      const manifest::Segment& segment = index.segments[k];
      SegmentReads reads;
      reads.id = {i, k};
      reads.segment = &segment;
      for (std::uint64_t begin = 0; begin < segment.bytes; begin += window_bytes) {
        reads.windows.push_back({begin, begin + std::min(window_bytes, segment.bytes - begin)});
      }
      if (!reads.windows.empty()) all.push_back(std::move(reads));
    }
  }
  return all;
}

}  // namespace infercluster::checkpoint
