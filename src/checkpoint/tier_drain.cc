// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/tier_drain.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "checkpoint/names.h"
#include "checkpoint/part.h"

namespace infercluster::checkpoint {
namespace {

struct Source {
  io::Directory directory;
  manifest::Commit commit;
  std::vector<manifest::Index> indexes;
};

Result<Source> open_source(io::FileCalls& calls, const io::Directory& root, std::uint64_t step) {
  Source source;
  IC_TRY(source.directory, calls.open_directory_in(root, step_name(step)));
  IC_TRY(auto commit, read_commit(calls, source.directory));
  if (!commit) {
    return Error(ErrorCode::not_found, "there is no commit record: this step is not durable here")
        .with_path(source.directory.path)
        .with_hint("`infercluster checkpoint ls` shows which steps are");
  }
  source.commit = *std::move(commit);
  IC_TRY(source.indexes, read_indexes(calls, source.directory, source.commit));
  return source;
}

class Drain {
 public:
  Drain(io::FileCalls& calls, const Source& source, const io::Directory& to, const DrainOptions& options)
      : calls_(calls), source_(source), to_(to), exists_(options.exists), copy_(options.copy) {
    report_.step = source.commit.step;
    if (!options.progress) return;
    std::uint64_t total = 0;
    for (const manifest::Index& index : source.indexes) {
      for (const manifest::Segment& segment : index.segments) total += segment.bytes;
    }
    copy_.progress = [progress = options.progress, total](std::uint64_t bytes) { return progress(bytes, total); };
  }

  Result<DrainReport> run() {
    const Clock::TimePoint started = steady_clock().now();
    IC_TRY(Begun begun, begin());
    report_.epoch = begun.epoch;
    if (!report_.was_durable) IC_CHECK(copy_and_commit(begun));
    const Status tidy = finish_replacement(calls_, begun);
    if (!tidy.ok()) log_warning("cannot tidy up: " + tidy.error().to_string());
    report_.seconds = seconds_between(started, steady_clock().now());
    return report_;
  }

 private:
  // Goes on with what an earlier call began for this very save, or begins.
  Result<Begun> begin() {
    const std::string& id = source_.commit.save_id;
    const std::uint64_t step = source_.commit.step;
    auto there = calls_.open_directory_in(to_, step_name(step));
    if (!there.ok() && there.error().system_errno() != ENOENT) return std::move(there).error();
    if (there.ok()) {
      IC_TRY(const auto committed, read_commit(calls_, *there));
      if (committed && committed->save_id == id) {
        report_.was_durable = true;
        return Begun{std::move(there).value(), step, committed->epoch, id};
      }
      IC_TRY(const auto epoch, epoch_begun(calls_, *there, id, committed ? committed->epoch : 0));
      if (epoch) return Begun{std::move(there).value(), step, *epoch, id};
      if (committed && exists_ == Exists::error) {
        return Error(ErrorCode::invalid_argument, "another save of this step is durable here")
            .with_path(there->path)
            .with_hint("To replace it, ask for that (--replace); else drain another step");
      }
    }
    IC_TRY(Begun begun, begin_save(calls_, to_, step, exists_, id));
    // The mark must last before anything is noted beside it.
    IC_CHECK(calls_.sync_directory(begun.directory));
    IC_CHECK(calls_.sync_directory(to_));
    return begun;
  }

  Status copy_and_commit(const Begun& begun) {
    std::vector<manifest::IndexReference> parts;
    for (const manifest::Index& index : source_.indexes) {
      IC_TRY(manifest::IndexReference part, copy_part(calls_, source_.directory, index, begun, copy_, report_.copied));
      parts.push_back(std::move(part));
    }
    // Another call for this save may have been faster.
    IC_TRY(const auto committed, read_commit(calls_, begun.directory));
    if (committed && committed->save_id == begun.save_id) {
      IC_CHECK(calls_.sync_directory(begun.directory));
      return calls_.sync_directory(to_);
    }
    // An earlier call may have ended between writing the record and giving it its name.
    Status removed = calls_.remove(begun.directory, commit_temporary_name(begun.epoch));
    if (!removed.ok() && removed.error().system_errno() != ENOENT) return removed;
    const manifest::Commit& commit = source_.commit;
    return commit_save(calls_, to_, begun, commit_of(begun, commit.world, commit.plan_hash, std::move(parts)));
  }

  io::FileCalls& calls_;
  const Source& source_;
  const io::Directory& to_;
  const Exists exists_;
  CopyOptions copy_;
  DrainReport report_;
};

}  // namespace

Result<DrainReport> drain_step(io::FileCalls& calls, const io::Directory& from, std::uint64_t step,
                               const io::Directory& to, const DrainOptions& options) {
  IC_TRY(const Source source, open_source(calls, from, step));
  return Drain(calls, source, to, options).run();
}

}  // namespace infercluster::checkpoint
