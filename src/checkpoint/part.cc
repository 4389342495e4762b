// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/part.h"

#include <cerrno>
#include <utility>

#include "base/log.h"
#include "checkpoint/names.h"
#include "checksum/crc32c.h"

namespace infercluster::checkpoint {

Result<manifest::IndexReference> write_part(io::FileCalls& calls, const Begun& begun, std::uint64_t node,
                                            const Layout& layout, const References& references,
                                            const manifest::Metadata& metadata, const NextWindow& next,
                                            const WriteOptions& options, std::atomic<std::uint64_t>& written,
                                            PartReport& report) {
  const WriterFile writer{node, begun.epoch};
  manifest::Index index;
  index.step = begun.step;
  index.epoch = begun.epoch;
  index.save_id = begun.save_id;
  index.node = node;
  index.metadata = metadata;
  if (!layout.chunks.empty()) {
    const std::string name = segment_name(writer, 0);
    IC_TRY(WrittenSegment segment, write_segment(calls, begun.directory, name, layout.bytes, next, options, written));
    report.direct = segment.direct;
    report.layout = std::move(segment.layout);
    index.segments.push_back({name, layout.bytes, std::move(segment.block_crcs)});
    index.chunks = layout.chunks;
  }
  IC_TRY(report.linked, link_references(calls, references, begun, options, written, index));
  IC_TRY(const std::string text, manifest::build_index(index));
  const std::string name = index_name(writer);
  IC_CHECK(write_small_file(calls, begun.directory, name, text));
  IC_CHECK(calls.sync_directory(begun.directory));
  report.index = std::move(index);
  return manifest::IndexReference{name, text.size(), checksum::crc32c(std::as_bytes(std::span(text)))};
}

void remove_part(io::FileCalls& calls, const Begun& begun, std::uint64_t node, const References& references) {
  const WriterFile writer{node, begun.epoch};
  const auto record = read_commit(calls, begun.directory);
  if (!record.ok() || (*record && (*record)->epoch == begun.epoch)) return;
  std::vector<std::string> names{index_name(writer)};
  for (std::size_t i = 0; i <= references.segments.size(); ++i) names.push_back(segment_name(writer, i));
  for (const std::string& name : names) {
    const Status removed = calls.remove(begun.directory, name);
    if (!removed.ok() && removed.error().system_errno() != ENOENT)
      log_warning("cannot tidy up: " + removed.error().to_string());
  }
}

manifest::Commit commit_of(const Begun& begun, std::uint64_t world, std::string plan_hash,
                           std::vector<manifest::IndexReference> parts) {
  manifest::Commit commit;
  commit.step = begun.step;
  commit.epoch = begun.epoch;
  commit.save_id = begun.save_id;
  commit.world = world;
  commit.plan_hash = std::move(plan_hash);
  commit.indexes = std::move(parts);
  return commit;
}

}  // namespace infercluster::checkpoint
