// SPDX-License-Identifier: Apache-2.0
// What a save need not write, since this rank's last checkpoint has it: the segments that hold it are linked into the
// new directory, and its index names the chunks in them. So each directory is complete by itself, and the file system
// counts who refers to a segment.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/directory.h"
#include "checkpoint/plan.h"
#include "checkpoint/segment_writer.h"
#include "io/files.h"
#include "manifest/index.h"

namespace infercluster::checkpoint {

inline constexpr std::size_t kReferencedSegmentsMax = 64;

// What this rank wrote of a checkpoint that is durable. Its directory stays open: names in another one that took its
// place mean nothing.
struct DurablePart {
  Begun begun;
  manifest::Index index;
  std::vector<std::uint64_t> pages;  // of each of the index's chunks: HostPiece::page
  bool linkable = true;              // as far as is known: the file system links its files into other directories
};

// What tells the content of a piece from others of its name.
struct Content {
  std::optional<std::uint64_t> generation;  // none: it tells nothing
  std::uint64_t page = 0;                   // HostPiece::page
};

struct References {
  std::shared_ptr<const DurablePart> from;  // null: there are none
  std::vector<std::size_t> segments;        // of from->index.segments
  std::vector<manifest::Chunk> chunks;      // `segment`: a position in `segments`
  std::vector<std::uint64_t> pages;         // of each chunk

  [[nodiscard]] std::uint64_t bytes() const;
};

// Takes out of `writes` what `from` has under the same name and shape with the same content; of a page all pieces or
// none. A segment of which less than half is wanted is not referred to, nor are more than kReferencedSegmentsMax: their
// pieces are written again, so that a checkpoint takes at most twice its size. `contents`: one per piece. Pure.
References choose_references(std::shared_ptr<const DurablePart> from, const Pieces& pieces,
                             std::span<const Content> contents, std::vector<std::size_t>& writes);

// What became of references.
struct Linked {
  std::uint64_t bytes_copied = 0;  // of segments that could not be linked
  std::string refusal;             // why the first could not; empty: all could
  bool linkable = true;            // DurablePart::linkable
};

// Links the segments into the directory of `into`, and adds them and their chunks to `index`. A segment that the file
// system does not link (a limit of links, directories between which it makes none) is copied, each block held against
// its checksum. The directory is not synced.
Result<Linked> link_references(io::FileCalls& calls, const References& references, const Begun& into,
                               const WriteOptions& options, std::atomic<std::uint64_t>& written,
                               manifest::Index& index);

}  // namespace infercluster::checkpoint
