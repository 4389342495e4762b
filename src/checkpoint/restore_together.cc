// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/restore_together.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "checkpoint/neighbours.h"
#include "checkpoint/node_plan.h"
#include "checkpoint/restore_plan.h"
#include "checkpoint/restore_run.h"

namespace infercluster::checkpoint {
namespace {

// Memory that a node's ranks share: 16 MiB for each of them, 256 MiB at most.
constexpr std::uint64_t kBuffersPerRank = 4;
constexpr std::uint64_t kBuffersMax = 64;
constexpr auto kLook = std::chrono::milliseconds(100);

std::string content_of(const Checkpoint& checkpoint) {
  const manifest::Commit& commit = checkpoint.commit();
  return "step " + std::to_string(commit.step) + " as save " + commit.save_id + " left it";
}

// With what the ranks of the node share, which ends when all of them have what they want.
Result<RestoreReport> run_on_node(const Checkpoint& checkpoint, std::vector<SegmentReads> segments,
                                  const RestoreOptions& options, Neighbours& neighbours,
                                  const exchange::Deadline& done) {
  IC_TRY(const std::vector<std::string> texts, neighbours.share(encode_wanted(wanted_blocks(segments)), done));
  std::vector<WantedBlocks> wanted;
  for (const std::string& text : texts) {
    IC_TRY(WantedBlocks of_rank, decode_wanted(text));
    wanted.push_back(std::move(of_rank));
  }
  const NodePlan plan = plan_for_node(wanted, kWindowBytes);
  const std::uint64_t ranks = neighbours.ranks().size();
  // One at least: all wait in it for the last one.
  const std::uint64_t buffers =
      std::clamp<std::uint64_t>(plan.shared.size(), 1, std::min(kBuffersPerRank * ranks, kBuffersMax));
  NodeShare share;
  share.plan = &plan;
  share.self = neighbours.self();
  share.deadline = done;
  share.watch = [&neighbours] { return neighbours.watch(); };
  if (ranks == 1) {
    IC_TRY(RestoreReport report, run_reads(checkpoint, std::move(segments), options, &share));
    report.node_bytes_read = report.bytes_read;
    return report;
  }
  IC_TRY(const os::SharedMemory memory, neighbours.share_memory(SharedRing::bytes(buffers, kWindowBytes), done));
  const SharedRing ring(memory.data(), buffers, kWindowBytes);
  share.ring = &ring;
  share.ring_memory = memory::host_span(memory.data().data(), memory.data().size());
  IC_TRY(RestoreReport report, run_reads(checkpoint, std::move(segments), options, &share));
  ring.finish();
  while (ring.finished() < ranks) {  // a process that ends before that is noticed
    const std::uint32_t seen = ring.changes();
    if (ring.finished() < ranks) ring.wait(seen, kLook);
    IC_CHECK(neighbours.watch());
    if (steady_clock().now() >= done)
      return Error(ErrorCode::timed_out, "the other ranks of this node did not restore in time");
  }
  report.node_ranks = ranks;
  report.node_bytes_read = plan.bytes();
  return report;
}

Result<RestoreReport> restore_own(const Checkpoint& checkpoint, std::span<const Target> targets,
                                  const RestoreOptions& options, const Together& together, Neighbours& neighbours) {
  IC_TRY(const std::uint64_t bytes, checkpoint.check(targets));
  IC_TRY(std::vector<SegmentReads> segments, plan_reads(checkpoint, targets, kWindowBytes));
  IC_CHECK(neighbours.meet(content_of(checkpoint), together.met));
  IC_TRY(RestoreReport report, run_on_node(checkpoint, std::move(segments), options, neighbours, together.done));
  report.bytes_wanted = bytes;
  report.index_bytes = checkpoint.index_bytes();
  return report;
}

}  // namespace

Result<RestoreReport> restore_together(const Checkpoint& checkpoint, std::span<const Target> targets,
                                       const RestoreOptions& options, const Together& together) {
  const Clock::TimePoint begin = steady_clock().now();
  Neighbours neighbours(together.ranks);  // until all have come to the end, lest one seems to have died
  auto report = restore_own(checkpoint, targets, options, together, neighbours);
  if (!report.ok()) return together.ranks.abort(report.error(), 0, together.done);
  // Those that are through before this one may leave: the round has its verdict then.
  IC_CHECK(together.ranks.agree_watched(
      "restored", "", [&] { return neighbours.look(); }, together.done));
  report->seconds = seconds_between(begin, steady_clock().now());
  return report;
}

}  // namespace infercluster::checkpoint
