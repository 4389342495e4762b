// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/retention.h"

#include "base/log.h"
#include "checkpoint/directory.h"
#include "checkpoint/names.h"

namespace infercluster::checkpoint {
namespace {

void keep_first(Status& first, Status status) {
  if (first.ok() && !status.ok()) first = std::move(status);
}

}  // namespace

std::vector<std::uint64_t> choose_to_remove(const std::vector<std::uint64_t>& verified, std::uint64_t newest,
                                            const Retention& retention) {
  std::vector<std::uint64_t> gone;
  if (retention.keep == 0) return gone;
  std::uint64_t kept = 1;  // the newest
  // NOLINTNEXTLINE(modernize-loop-convert): clang 14 reads no views of libstdc++ 12
  for (auto step = verified.rbegin(); step != verified.rend(); ++step) {
    if (*step == newest) continue;
    if (kept < retention.keep) {
      ++kept;
    } else if (retention.keep_every == 0 || *step % retention.keep_every != 0) {
      gone.push_back(*step);
    }
  }
  return gone;
}

Status prune(io::FileCalls& calls, const io::Directory& root, std::uint64_t newest, const Retention& retention,
             const FreePace& pace, const std::set<std::uint64_t>& busy) {
  if (retention.keep == 0) return {};
  IC_TRY(const std::vector<std::uint64_t> steps, list_steps(calls, root));
  std::vector<std::uint64_t> verified;
  for (const std::uint64_t step : steps) {
    if (is_whole(calls, root, step)) verified.push_back(step);
  }
  Status first;
  for (const std::uint64_t step : choose_to_remove(verified, newest, retention)) {
    if (busy.contains(step)) continue;
    keep_first(first, remove_step(calls, root, step, random_id(), Remove::committed_too, pace));
  }
  return first;
}

Status sweep(io::FileCalls& calls, const io::Directory& root, const std::set<std::uint64_t>& busy) {
  IC_TRY(const std::vector<io::Entry> entries, calls.list(root));
  Status first;
  for (const io::Entry& entry : entries) {
    if (!entry.is_directory) continue;
    if (is_trash_name(entry.name)) keep_first(first, remove_trash(calls, root, entry.name));
    const auto step = parse_step_name(entry.name);
    if (!step || busy.contains(*step)) continue;
    const auto directory = calls.open_directory_in(root, entry.name);
    if (!directory.ok()) continue;
    const auto commit = read_commit(calls, *directory);
    if (!commit.ok() || commit->has_value()) continue;
    const auto stock = is_stock_dcp(calls, *directory);
    if (!stock.ok() || *stock) continue;
    log_warning(directory->path + ": removing what an interrupted save left behind");
    keep_first(first, remove_step(calls, root, *step, random_id(), Remove::uncommitted_only));
  }
  return first;
}

}  // namespace infercluster::checkpoint
