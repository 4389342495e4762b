// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/drain_job.h"

#include <cerrno>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "checkpoint/drain.h"
#include "checkpoint/fast_tier.h"
#include "checkpoint/names.h"
#include "checkpoint/part.h"
#include "checkpoint/segment_copy.h"
#include "exchange/wire.h"

namespace infercluster::checkpoint {
namespace {

struct Brought {
  std::uint64_t part = 0;
  manifest::IndexReference index;
};

std::string encode(const std::vector<Brought>& all) {
  exchange::Writer out;
  out.number(all.size());
  for (const Brought& one : all) {
    out.number(one.part);
    out.text(one.index.name);
    out.number(one.index.bytes);
    out.number(one.index.crc32c);
  }
  return out.take();
}

// Puts what a rank brought in its place.
Status take_in(std::string_view bytes, std::vector<std::optional<manifest::IndexReference>>& by_part) {
  exchange::Reader in(bytes);
  const std::uint64_t count = in.number();
  for (std::uint64_t i = 0; i < count && !in.failed(); ++i) {
    const std::uint64_t part = in.number();
    manifest::IndexReference index;
    index.name = in.text();
    index.bytes = in.number();
    index.crc32c = static_cast<std::uint32_t>(in.number());
    if (part >= by_part.size() || by_part[part])
      return Error(ErrorCode::internal, "two ranks brought one part to the root, or none that there is");
    by_part[part] = std::move(index);
  }
  if (!in.complete()) return Error(ErrorCode::corrupt, "what a rank said of its parts is damaged");
  return {};
}

class Drainer {
 public:
  Drainer(const Shared& shared, DrainJob& job)
      : shared_(shared), job_(job), deadline_(exchange::deadline_in(shared.options.write_deadline)) {}

  void run() {
    const Clock::TimePoint begin = steady_clock().now();
    const io::DrainGovernor::Report before = report_of(shared_.write);
    const Status done = drain();
    add_throttling(job_.report, before, report_of(shared_.write));
    job_.report.drain_seconds = seconds_between(begin, steady_clock().now());
    job_.report.durable_seconds = seconds_between(job_.started, steady_clock().now());
    job_.report.bytes_drained = copied_.bytes;
    job_.report.bytes_resumed = copied_.bytes_resumed;
    if (!done.ok()) {
      const Error cause = told(job_.ranks->abort(done.error(), copied_.bytes, deadline_));
      log_error(cause.to_string());
      job_.on_failure(cause);
      job_.save->finish(job_.report, cause);
      return;
    }
    log_info(step() + ": durable (" + format_bytes(copied_.bytes) + " drained by rank " + std::to_string(shared_.rank) +
             ")");
    job_.save->finish(job_.report, std::nullopt);
    if (shared_.rank != 0) return;
    warn(finish_replacement(*shared_.calls, job_.begun));
    warn(prune(*shared_.calls, shared_.root, job_.begun.step, shared_.options.retention, pace_of(shared_.write)));
  }

 private:
  [[nodiscard]] std::string step() const { return "step " + std::to_string(job_.begun.step); }

  Error told(const Error& cause) const {
    const std::string stays = step() + " stays on the fast tier, and the next job goes on with its drain";
    return Error(cause.code(), "the root does not have " + step() + ": " + cause.message())
        .with_errno(cause.system_errno())
        .with_path(cause.path())
        .with_hint(cause.hint().empty() ? stays : cause.hint() + ". " + stays);
  }

  Status drain() {
    IC_CHECK(join_root(shared_, job_.begun, *job_.ranks, deadline_));
    std::vector<Brought> brought;
    for (const std::uint64_t part : job_.parts) {
      IC_TRY(manifest::IndexReference index, bring(part));
      brought.push_back({part, std::move(index)});
    }
    std::vector<std::string> all;  // on rank 0: what the others need not receive
    const auto keep = [&all](const std::vector<std::string>& given) -> Result<std::string> {
      all = given;
      return std::string();
    };
    IC_CHECK(job_.ranks->decide("drained", encode(brought), keep, deadline_));
    if (shared_.rank == 0) IC_CHECK(commit(all));
    return agree_on_commit(shared_, job_.begun, *job_.ranks, deadline_);
  }

  Result<manifest::IndexReference> bring(std::uint64_t part) {
    IC_TRY(const OpenPart from,
           open_part(*shared_.calls, shared_.fast->directory, part, job_.begun.step, job_.begun.save_id));
    CopyOptions options;
    options.extent_bytes = shared_.options.fast->extent_bytes;
    options.write = shared_.write;
    // Another rank's failure ends this one's copy at the next extent.
    Status ended;
    options.progress = [&](std::uint64_t) {
      ended = job_.ranks->check();
      return ended.ok();
    };
    auto index = copy_part(*shared_.calls, from.directory, from.index, job_.begun, options, copied_);
    IC_CHECK(ended);
    return index;
  }

  Status commit(const std::vector<std::string>& given) {
    std::vector<std::optional<manifest::IndexReference>> by_part(job_.world);
    for (const std::string& of_rank : given) IC_CHECK(take_in(of_rank, by_part));
    std::vector<manifest::IndexReference> parts;
    for (auto& part : by_part) {
      if (!part) return Error(ErrorCode::internal, "nobody brought a part to the root");
      parts.push_back(*std::move(part));
    }
    // An earlier job may have ended between writing the record and giving it its name.
    const Status removed = shared_.calls->remove(job_.begun.directory, commit_temporary_name(job_.begun.epoch));
    if (!removed.ok() && removed.error().system_errno() != ENOENT) return removed;
    return commit_save(*shared_.calls, shared_.root, job_.begun,
                       commit_of(job_.begun, job_.world, job_.plan_hash, std::move(parts)));
  }

  static void warn(const Status& status) {
    if (!status.ok()) log_warning("cannot tidy up: " + status.error().to_string());
  }

  const Shared& shared_;
  DrainJob& job_;
  const exchange::Deadline deadline_;
  CopyReport copied_;
};

}  // namespace

void run_drain(const Shared& shared, DrainJob& job) {
  Drainer(shared, job).run();
}

}  // namespace infercluster::checkpoint
