// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/save_job.h"

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "checkpoint/drain.h"
#include "checkpoint/fast_tier.h"
#include "checkpoint/part.h"
#include "exchange/wire.h"

namespace infercluster::checkpoint {
namespace {

constexpr auto kLookAgain = std::chrono::milliseconds(20);
constexpr std::uint64_t kCostOfFreeing = 1 * kMiB;  // of kFreedAtOnce

class Runner {
 public:
  Runner(const Shared& shared, SaveJob& job)
      : shared_(shared), job_(job), deadline_(exchange::deadline_in(shared.options.write_deadline)) {}

  // Whether a drain comes next.
  bool run() {
    Status done = save();
    if (job_.image != nullptr) job_.image->abandon();
    const double seconds = seconds_between(job_.started, steady_clock().now());
    (job_.fast ? job_.report.fast_seconds : job_.report.durable_seconds) = seconds;
    const std::string step = "step " + std::to_string(job_.report.step);
    if (!done.ok()) {
      if (job_.fast) done = with_advice(done.error());
      const Error cause = job_.ranks->abort(done.error(), written_, deadline_);
      log_error(step + ": failed: " + cause.to_string());
      clean_up();
      job_.on_failure(cause);
      job_.save->finish(job_.report, cause);
      return false;
    }
    log_info(step + (job_.fast ? ": durable on the fast tier (" : ": durable (") + format_bytes(job_.report.bytes) +
             " of rank " + std::to_string(shared_.rank) + ")");
    std::vector<std::uint64_t> pages = std::move(job_.pages);  // in the order of write_part()'s chunks
    pages.insert(pages.end(), job_.references.pages.begin(), job_.references.pages.end());
    const bool on_fast = job_.fast.has_value();
    Begun written = on_fast ? *std::move(job_.fast) : std::move(job_.begun);
    const auto part = std::make_shared<const DurablePart>(
        DurablePart{std::move(written), std::move(index_), std::move(pages), linkable_});
    job_.references = {};  // the directory that they refer to is open no longer than need be
    job_.on_durable(part);
    if (on_fast) {
      job_.report.fast = TierStatus::durable;
      warn(finish_replacement(*shared_.calls, part->begun));
      job_.save->reach_fast(job_.report);
      return true;
    }
    job_.save->finish(job_.report, std::nullopt);
    if (shared_.rank == 0) tidy(part->begun);
    return false;
  }

 private:
  Status save() {
    IC_CHECK(choose_tier());
    if (!job_.fast) IC_CHECK(join_root(shared_, job_.begun, *job_.ranks, deadline_));
    const Clock::TimePoint begin = steady_clock().now();
    IC_TRY(const Root root, write_files());
    job_.report.write_seconds = seconds_between(begin, steady_clock().now());
    if (job_.fast) return commit_on_fast(root);
    std::vector<std::string> roots;  // on rank 0: what the others need not receive
    const auto keep = [&roots](const std::vector<std::string>& given) -> Result<std::string> {
      roots = given;
      return std::string();
    };
    IC_CHECK(job_.ranks->decide("roots", encode(root), keep, deadline_));
    if (shared_.rank == 0) IC_CHECK(commit(roots));
    return agree_on_commit(shared_, job_.begun, *job_.ranks, deadline_);
  }

  // The fast tier, where there is one and every rank can use it; else the root, and the report says why.
  Status choose_tier() {
    if (!shared_.fast) return {};
    // What is committed there counts by the root's mark.
    if (shared_.rank == 0) {
      IC_CHECK(shared_.calls->sync_directory(job_.begun.directory));
      IC_CHECK(shared_.calls->sync_directory(shared_.root));
    }
    auto begun = begin_on_fast();
    const auto first = [](const std::vector<std::string>& given) -> Result<std::string> {
      for (std::size_t rank = 0; rank < given.size(); ++rank) {
        if (!given[rank].empty()) return "rank " + std::to_string(rank) + ": " + given[rank];
      }
      return std::string();
    };
    const std::string own = begun.ok() ? std::string() : begun.error().to_string();
    auto refusal = job_.ranks->decide("tier", own, first, deadline_);
    if (refusal.ok() && refusal->empty()) {
      job_.fast = std::move(begun).value();
      return {};
    }
    if (begun.ok()) warn(discard_save(*shared_.calls, shared_.fast->rank_directory, *begun));
    if (!refusal.ok()) return std::move(refusal).error();
    job_.report.fast = TierStatus::left_out;
    job_.report.notice = "saved to the root, without the fast tier: " + *refusal;
    log_warning("step " + std::to_string(job_.report.step) + ": " + job_.report.notice);
    return {};
  }

  Result<Begun> begin_on_fast() {
    IC_CHECK(check_room(shared_.fast->rank_directory, job_.report.bytes));
    const std::lock_guard lock(*shared_.fast->pruning);
    return begin_save(*shared_.calls, shared_.fast->rank_directory, job_.report.step, Exists::replace,
                      job_.begun.save_id);
  }

  // There was room when the save began.
  static Error with_advice(const Error& error) {
    const int number = error.system_errno();
    if (number != ENOSPC && number != EDQUOT) return error;
    return Error(error.code(), "the fast tier is full: " + error.message())
        .with_errno(number)
        .with_path(error.path())
        .with_hint("Remove what else is there, or keep fewer checkpoints on this tier, and save again");
  }

  // Each rank its own part; the save counts when all have.
  Status commit_on_fast(const Root& root) {
    const auto world = static_cast<std::uint64_t>(shared_.options.exchange->world());
    IC_CHECK(commit_save(*shared_.calls, shared_.fast->rank_directory, *job_.fast,
                         commit_of(*job_.fast, world, job_.plan_hash, {root.index})));
    return job_.ranks->agree("fast", job_.plan_hash, deadline_);
  }

  [[nodiscard]] const WriteOptions& write_options() const { return job_.fast ? shared_.fast->write : shared_.write; }

  Result<Root> write_files() {
    PartReport report;
    const io::DrainGovernor::Report before = report_of(write_options());
    IC_TRY(manifest::IndexReference index,
           write_part(
               *shared_.calls, job_.fast ? *job_.fast : job_.begun, node(), *job_.layout, job_.references,
               job_.metadata, [this] { return next_window(); }, write_options(), written_, report));
    add_throttling(job_.report, before, report_of(write_options()));
    job_.report.direct = report.direct;
    job_.report.layout = std::move(report.layout);
    index_ = std::move(report.index);
    job_.report.bytes_copied = report.linked.bytes_copied;
    job_.report.link_refusal = std::move(report.linked.refusal);
    linkable_ = report.linked.linkable;
    if (!job_.report.link_refusal.empty()) {
      log_warning("what did not change was copied from the last checkpoint (" + format_bytes(job_.report.bytes_copied) +
                  "), since the file system did not link it: " + job_.report.link_refusal +
                  (linkable_ ? "" : "; from now on each save writes everything"));
    }
    return Root{std::move(index), job_.plan_hash};
  }

  [[nodiscard]] std::uint64_t node() const { return static_cast<std::uint64_t>(shared_.rank); }

  Result<std::optional<ImageWindow>> next_window() {
    IC_TRY(std::optional<ImageWindow> window, job_.image->pop());
    if (window && window->begin + window->bytes == job_.layout->bytes) job_.save->stage();
    return window;
  }

  Status commit(const std::vector<std::string>& roots) {
    std::vector<manifest::IndexReference> parts;
    for (std::size_t rank = 0; rank < roots.size(); ++rank) {
      IC_TRY(Root root, decode_root(roots[rank]));
      if (root.plan_hash != job_.plan_hash)
        return Error(ErrorCode::internal, "rank " + std::to_string(rank) + " saved by another plan than rank 0");
      parts.push_back(std::move(root.index));
    }
    return commit_save(*shared_.calls, shared_.root, job_.begun,
                       commit_of(job_.begun, roots.size(), job_.plan_hash, std::move(parts)));
  }

  // After a failure. What cannot be removed now is swept by the next job.
  void clean_up() {
    if (job_.fast) warn(remove_own_part(*shared_.calls, shared_.fast->rank_directory, *job_.fast));
    if (!job_.begun.directory.fd.valid()) return;
    if (shared_.rank == 0) {
      warn(discard_save(*shared_.calls, shared_.root, job_.begun));
      return;
    }
    remove_part(*shared_.calls, job_.begun, node(), job_.references);
  }

  void tidy(const Begun& begun) {
    warn(finish_replacement(*shared_.calls, begun));
    warn(prune(*shared_.calls, shared_.root, begun.step, shared_.options.retention, pace_of(shared_.write)));
  }

  static void warn(const Status& status) {
    if (!status.ok()) log_warning("cannot tidy up: " + status.error().to_string());
  }

  const Shared& shared_;
  SaveJob& job_;
  const exchange::Deadline deadline_;
  std::atomic<std::uint64_t> written_{0};
  manifest::Index index_;  // of this rank
  bool linkable_ = true;
};

}  // namespace

FreePace pace_of(const WriteOptions& options) {
  return [&options] {
    // What a discard costs the disk is far from what a write of the same bytes does.
    const std::atomic<bool> never{false};
    wait_for_turn(options, kCostOfFreeing, never);
  };
}

bool run_save(const Shared& shared, SaveJob& job) {
  return Runner(shared, job).run();
}

Status join_root(const Shared& shared, Begun& begun, exchange::Exchange& ranks, exchange::Deadline deadline) {
  if (shared.rank == 0) return {};
  Status stop;
  const auto waiting = [&] {
    stop = ranks.check();
    if (!stop.ok() || steady_clock().now() >= deadline) return false;
    std::this_thread::sleep_for(kLookAgain);
    return true;
  };
  auto joined = join_save(*shared.calls, shared.root, begun.step, begun.epoch, begun.save_id, waiting);
  IC_CHECK(stop);
  if (!joined.ok()) return std::move(joined).error();
  begun = std::move(joined).value();
  return {};
}

Status agree_on_commit(const Shared& shared, const Begun& begun, exchange::Exchange& ranks,
                       exchange::Deadline deadline) {
  const Status all = ranks.agree("committed", "", deadline);
  if (all.ok()) return {};
  // Somebody is gone, but the record may be there: then the checkpoint is.
  const auto record = read_commit(*shared.calls, begun.directory);
  if (record.ok() && *record && (*record)->save_id == begun.save_id) return {};
  return all.error();
}

std::string encode(const Root& root) {
  exchange::Writer out;
  out.text(root.index.name);
  out.number(root.index.bytes);
  out.number(root.index.crc32c);
  out.text(root.plan_hash);
  return out.take();
}

Result<Root> decode_root(std::string_view bytes) {
  exchange::Reader in(bytes);
  Root root;
  root.index.name = in.text();
  root.index.bytes = in.number();
  root.index.crc32c = static_cast<std::uint32_t>(in.number());
  root.plan_hash = in.text();
  if (!in.complete()) return Error(ErrorCode::corrupt, "what a rank said of its index is damaged");
  return root;
}

}  // namespace infercluster::checkpoint
