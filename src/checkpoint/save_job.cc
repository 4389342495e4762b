// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/save_job.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/units.h"
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

  void run() {
    Status done = save();
    if (job_.image != nullptr) job_.image->abandon();
    job_.report.durable_seconds = seconds_between(job_.started, steady_clock().now());
    const std::string step = "step " + std::to_string(job_.report.step);
    if (!done.ok()) {
      const Error cause = job_.ranks->abort(done.error(), written_, deadline_);
      log_error(step + ": failed: " + cause.to_string());
      clean_up();
      job_.on_failure(cause);
      job_.save->finish(job_.report, cause);
      return;
    }
    log_info(step + ": durable (" + format_bytes(job_.report.bytes) + " of rank " + std::to_string(shared_.rank) + ")");
    std::vector<std::uint64_t> pages = std::move(job_.pages);  // in the order of write_part()'s chunks
    pages.insert(pages.end(), job_.references.pages.begin(), job_.references.pages.end());
    const auto part =
        std::make_shared<const DurablePart>(std::move(job_.begun), std::move(index_), std::move(pages), linkable_);
    job_.references = {};  // the directory that they refer to is open no longer than need be
    job_.on_durable(part);
    job_.save->finish(job_.report, std::nullopt);
    if (shared_.rank == 0) tidy(part->begun);
  }

 private:
  Status save() {
    IC_CHECK(join());
    const Clock::TimePoint begin = steady_clock().now();
    IC_TRY(const Root root, write_files());
    job_.report.write_seconds = seconds_between(begin, steady_clock().now());
    std::vector<std::string> roots;  // on rank 0: what the others need not receive
    const auto keep = [&roots](const std::vector<std::string>& given) -> Result<std::string> {
      roots = given;
      return std::string();
    };
    IC_CHECK(job_.ranks->decide("roots", encode(root), keep, deadline_));
    if (shared_.rank == 0) IC_CHECK(commit(roots));
    const Status all = job_.ranks->agree("committed", "", deadline_);
    if (all.ok()) return {};
    // Somebody is gone, but the record may be there: then the checkpoint is.
    const auto record = read_commit(*shared_.calls, job_.begun.directory);
    if (record.ok() && *record && (*record)->save_id == job_.begun.save_id) return {};
    return all.error();
  }

  Status join() {
    if (shared_.rank == 0) return {};
    Status stop;
    const auto waiting = [&] {
      stop = job_.ranks->check();
      if (!stop.ok() || steady_clock().now() >= deadline_) return false;
      std::this_thread::sleep_for(kLookAgain);
      return true;
    };
    auto begun =
        join_save(*shared_.calls, shared_.root, job_.begun.step, job_.begun.epoch, job_.begun.save_id, waiting);
    IC_CHECK(stop);
    if (!begun.ok()) return std::move(begun).error();
    job_.begun = std::move(begun).value();
    return {};
  }

  Result<Root> write_files() {
    PartReport report;
    const io::DrainGovernor::Report before = drain_report();
    IC_TRY(manifest::IndexReference index,
           write_part(
               *shared_.calls, job_.begun, node(), *job_.layout, job_.references, job_.metadata,
               [this] { return next_window(); }, shared_.write, written_, report));
    report_drain(before);
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

  [[nodiscard]] io::DrainGovernor::Report drain_report() const {
    return shared_.write.drain == nullptr ? io::DrainGovernor::Report{} : shared_.write.drain->report();
  }
  void report_drain(const io::DrainGovernor::Report& before) {
    const io::DrainGovernor::Report now = drain_report();
    job_.report.throttled_seconds = now.throttled_seconds - before.throttled_seconds;
    job_.report.requests_cut = now.requests_cut - before.requests_cut;
    job_.report.lowest_rate = now.lowest_rate;
  }

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
    if (!job_.begun.directory.fd.valid()) return;
    if (shared_.rank == 0) {
      warn(discard_save(*shared_.calls, shared_.root, job_.begun));
      return;
    }
    remove_part(*shared_.calls, job_.begun, node(), job_.references);
  }

  void tidy(const Begun& begun) {
    warn(finish_replacement(*shared_.calls, begun));
    warn(prune(*shared_.calls, shared_.root, begun.step, shared_.options.retention, [this] {
      // What a discard costs the disk is far from what a write of the same bytes does.
      wait_for_turn(shared_.write, kCostOfFreeing, never_);
    }));
  }

  static void warn(const Status& status) {
    if (!status.ok()) log_warning("cannot tidy up: " + status.error().to_string());
  }

  const Shared& shared_;
  SaveJob& job_;
  const exchange::Deadline deadline_;
  std::atomic<std::uint64_t> written_{0};
  const std::atomic<bool> never_{false};
  manifest::Index index_;  // of this rank
  bool linkable_ = true;
};

}  // namespace

void run_save(const Shared& shared, SaveJob& job) {
  Runner(shared, job).run();
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
