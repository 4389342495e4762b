// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/references.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "checkpoint/names.h"

namespace infercluster::checkpoint {
namespace {

constexpr std::size_t kNotReferred = SIZE_MAX;

struct Candidate {
  std::size_t piece = 0;
  const manifest::Chunk* chunk = nullptr;
};

std::vector<Candidate> find_candidates(const manifest::Index& index, const Pieces& pieces,
                                       std::span<const std::optional<std::uint64_t>> generations,
                                       std::span<const std::size_t> writes) {
  std::unordered_multimap<std::string_view, const manifest::Chunk*> there;
  for (const manifest::Chunk& chunk : index.chunks) {
    if (chunk.generation && chunk.bytes > 0) there.emplace(chunk.tensor, &chunk);
  }
  std::vector<Candidate> found;
  for (const std::size_t i : writes) {
    const Piece& piece = pieces[i];
    if (!generations[i]) continue;
    const auto [first, last] = there.equal_range(piece.tensor);
    const auto same = std::find_if(first, last, [&](const auto& entry) {
      const manifest::Chunk& chunk = *entry.second;
      return chunk.generation == generations[i] && chunk.dtype == piece.dtype && chunk.shape == piece.shape &&
             chunk.box == piece.box;
    });
    if (same != last) found.push_back({i, same->second});
  }
  return found;
}

// Of the index's segments those to refer to.
std::vector<std::size_t> choose_segments(const manifest::Index& index, std::span<const Candidate> candidates) {
  std::vector<std::uint64_t> wanted(index.segments.size());
  for (const Candidate& candidate : candidates) wanted[candidate.chunk->segment] += candidate.chunk->bytes;
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::uint64_t bytes = index.segments[i].bytes;
    if (wanted[i] > 0 && wanted[i] >= bytes - wanted[i]) chosen.push_back(i);
  }
  std::stable_sort(chosen.begin(), chosen.end(), [&](std::size_t a, std::size_t b) { return wanted[a] > wanted[b]; });
  if (chosen.size() > kReferencedSegmentsMax) chosen.resize(kReferencedSegmentsMax);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace

std::uint64_t References::bytes() const {
  std::uint64_t sum = 0;
  for (const manifest::Chunk& chunk : chunks) sum += chunk.bytes;
  return sum;
}

References choose_references(std::shared_ptr<const DurablePart> from, const Pieces& pieces,
                             std::span<const std::optional<std::uint64_t>> generations,
                             std::vector<std::size_t>& writes) {
  if (from == nullptr) return {};
  const std::vector<Candidate> candidates = find_candidates(from->index, pieces, generations, writes);
  References references;
  references.segments = choose_segments(from->index, candidates);
  if (references.segments.empty()) return {};
  std::vector<std::size_t> position(from->index.segments.size(), kNotReferred);
  for (std::size_t i = 0; i < references.segments.size(); ++i) position[references.segments[i]] = i;
  std::vector<std::size_t> referred;
  for (const Candidate& candidate : candidates) {
    const std::size_t segment = position[candidate.chunk->segment];
    if (segment == kNotReferred) continue;
    manifest::Chunk chunk = *candidate.chunk;
    chunk.segment = segment;
    references.chunks.push_back(std::move(chunk));
    referred.push_back(candidate.piece);  // ascending, as `writes`
  }
  std::erase_if(writes, [&](std::size_t i) { return std::binary_search(referred.begin(), referred.end(), i); });
  references.from = std::move(from);
  return references;
}

Status link_references(io::FileCalls& calls, const References& references, const Begun& into, manifest::Index& index) {
  if (references.from == nullptr) return {};
  const DurablePart& from = *references.from;
  const std::uint64_t first = index.segments.size();
  std::uint64_t number = 1;  // 0 is what this save writes
  for (const std::size_t i : references.segments) {
    manifest::Segment segment = from.index.segments[i];
    const std::string name = segment_name({index.node, into.epoch}, number++);
    const Status linked = calls.link_into(from.begun.directory, segment.name, into.directory, name);
    if (!linked.ok()) {
      return Error(linked.error())
          .with_hint(
              "What did not change stays in an earlier checkpoint's files, which was removed or cannot be "
              "linked; the next save writes everything");
    }
    IC_TRY(const std::uint64_t bytes, calls.size_of(into.directory, name));
    if (bytes != segment.bytes) {
      return Error(ErrorCode::corrupt,
                   "expected " + std::to_string(segment.bytes) + " bytes, found " + std::to_string(bytes))
          .with_path(from.begun.directory.path + "/" + segment.name)
          .with_hint("The file was cut or changed after it was saved; the next save writes everything");
    }
    segment.name = name;
    index.segments.push_back(std::move(segment));
  }
  for (manifest::Chunk chunk : references.chunks) {
    chunk.segment += first;
    index.chunks.push_back(std::move(chunk));
  }
  return {};
}

}  // namespace infercluster::checkpoint
