// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/references.h"

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "checkpoint/names.h"
#include "checkpoint/referred_copy.h"

namespace infercluster::checkpoint {
namespace {

struct Candidate {
  std::size_t piece = 0;
  std::size_t chunk = 0;  // of the earlier index
};

bool is_same(const manifest::Chunk& chunk, const Piece& piece) {
  return chunk.dtype == piece.dtype && chunk.shape == piece.shape && chunk.box == piece.box;
}

std::vector<Candidate> find_candidates(const DurablePart& from, const Pieces& pieces, std::span<const Content> contents,
                                       std::span<const std::size_t> writes) {
  const std::vector<manifest::Chunk>& chunks = from.index.chunks;
  std::unordered_multimap<std::string_view, std::size_t> there;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].generation && chunks[i].bytes > 0) there.emplace(chunks[i].tensor, i);
  }
  std::vector<Candidate> found;
  for (const std::size_t i : writes) {
    if (!contents[i].generation) continue;
    const auto [first, last] = there.equal_range(pieces[i].tensor);
    const auto same = std::find_if(first, last, [&](const auto& entry) {
      const std::size_t chunk = entry.second;
      return chunks[chunk].generation == contents[i].generation && from.pages[chunk] == contents[i].page &&
             is_same(chunks[chunk], pieces[i]);
    });
    if (same != last) found.push_back({i, same->second});
  }
  return found;
}

// Of the index's segments those to refer to.
std::vector<std::size_t> choose_segments(const manifest::Index& index, std::span<const Candidate> candidates) {
  std::vector<std::uint64_t> wanted(index.segments.size());
  for (const Candidate& candidate : candidates) {
    const manifest::Chunk& chunk = index.chunks[candidate.chunk];
    wanted[chunk.segment] += chunk.bytes;
  }
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

// Leaves only pages of which every piece in `writes` is a candidate.
void keep_whole_pages(std::span<const Content> contents, std::span<const std::size_t> writes,
                      std::vector<Candidate>& candidates) {
  std::unordered_map<std::uint64_t, std::size_t> missing;
  for (const std::size_t i : writes) {
    if (contents[i].page != 0) ++missing[contents[i].page];
  }
  for (const Candidate& candidate : candidates) {
    if (contents[candidate.piece].page != 0) --missing[contents[candidate.piece].page];
  }
  std::erase_if(candidates, [&](const Candidate& candidate) {
    const auto found = missing.find(contents[candidate.piece].page);
    return found != missing.end() && found->second > 0;
  });
}

// Whether the file system will not link a file, which is there, for a reason that a copy of it does not share.
bool is_refusal(int error) {
  return error == EMLINK || error == EXDEV || error == EPERM || error == EOPNOTSUPP || error == ENOSYS;
}

Error no_links() {
  return Error::from_errno(EPERM, "it made no link before");
}

Status check_size(io::FileCalls& calls, const io::Directory& directory, const std::string& name, std::uint64_t expected,
                  const std::string& original) {
  IC_TRY(const std::uint64_t bytes, calls.size_of(directory, name));
  if (bytes == expected) return {};
  return Error(ErrorCode::corrupt, "expected " + std::to_string(expected) + " bytes, found " + std::to_string(bytes))
      .with_path(original)
      .with_hint("The file was cut or changed after it was saved; the next save writes everything");
}

}  // namespace

std::uint64_t References::bytes() const {
  std::uint64_t sum = 0;
  for (const manifest::Chunk& chunk : chunks) sum += chunk.bytes;
  return sum;
}

References choose_references(std::shared_ptr<const DurablePart> from, const Pieces& pieces,
                             std::span<const Content> contents, std::vector<std::size_t>& writes) {
  if (from == nullptr) return {};
  const manifest::Index& index = from->index;
  std::vector<Candidate> candidates = find_candidates(*from, pieces, contents, writes);
  References references;
  // A page with a piece in a segment that is not chosen takes its pieces out of the others too.
  for (std::size_t before = candidates.size() + 1; candidates.size() < before;) {
    before = candidates.size();
    keep_whole_pages(contents, writes, candidates);
    references.segments = choose_segments(index, candidates);
    std::erase_if(candidates, [&](const Candidate& candidate) {
      const auto& chosen = references.segments;
      return !std::binary_search(chosen.begin(), chosen.end(), index.chunks[candidate.chunk].segment);
    });
  }
  if (candidates.empty()) return {};
  std::vector<std::size_t> position(index.segments.size());
  for (std::size_t i = 0; i < references.segments.size(); ++i) position[references.segments[i]] = i;
  std::vector<std::size_t> referred;
  for (const Candidate& candidate : candidates) {
    manifest::Chunk chunk = index.chunks[candidate.chunk];
    chunk.segment = position[chunk.segment];
    references.chunks.push_back(std::move(chunk));
    references.pages.push_back(contents[candidate.piece].page);
    referred.push_back(candidate.piece);  // ascending, as `writes`
  }
  std::erase_if(writes, [&](std::size_t i) { return std::binary_search(referred.begin(), referred.end(), i); });
  references.from = std::move(from);
  return references;
}

Result<Linked> link_references(io::FileCalls& calls, const References& references, const Begun& into,
                               const WriteOptions& options, std::atomic<std::uint64_t>& written,
                               manifest::Index& index) {
  Linked result;
  if (references.from == nullptr) return result;
  const DurablePart& from = *references.from;
  const std::uint64_t first = index.segments.size();
  std::uint64_t number = 1;  // 0 is what this save writes
  for (const std::size_t i : references.segments) {
    manifest::Segment segment = from.index.segments[i];
    const std::string name = segment_name({index.node, into.epoch}, number++);
    const Status linked = result.linkable ? calls.link_into(from.begun.directory, segment.name, into.directory, name)
                                          : Status(no_links());
    if (linked.ok()) {
      IC_CHECK(check_size(calls, into.directory, name, segment.bytes, from.begun.directory.path + "/" + segment.name));
    } else if (is_refusal(linked.error().system_errno())) {
      if (result.refusal.empty()) result.refusal = linked.error().to_string();
      if (linked.error().system_errno() != EMLINK) result.linkable = false;
      IC_CHECK(copy_referred(calls, from.begun.directory, segment, {into.directory, name}, options, written));
      result.bytes_copied += segment.bytes;
    } else {
      return Error(linked.error())
          .with_hint(
              "What did not change stays in an earlier checkpoint's files, which was removed or cannot be "
              "linked; the next save writes everything");
    }
    segment.name = name;
    index.segments.push_back(std::move(segment));
  }
  for (manifest::Chunk chunk : references.chunks) {
    chunk.segment += first;
    index.chunks.push_back(std::move(chunk));
  }
  return result;
}

}  // namespace infercluster::checkpoint
