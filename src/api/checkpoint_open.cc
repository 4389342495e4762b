// SPDX-License-Identifier: Apache-2.0
#include <cerrno>

#include "checkpoint/directory.h"
#include "checkpoint/names.h"
#include "infercluster/checkpoint_tools.h"
#include "infercluster/infercluster.h"
#include "io/files.h"

namespace infercluster::checkpoint {
namespace {

// Whether it holds a commit record, a damaged one too.
Result<bool> is_checkpoint(io::FileCalls& calls, const io::Directory& directory) {
  IC_TRY(const std::vector<io::Entry> entries, calls.list(directory));
  for (const io::Entry& entry : entries) {
    if (!entry.is_directory && epoch_of_commit(entry.name)) return true;
  }
  return false;
}

// No longer, once somebody else has removed it.
bool is_there(io::FileCalls& calls, const io::Directory& root, std::uint64_t step) {
  const auto directory = calls.open_directory_in(root, step_name(step));
  return directory.ok() || directory.error().system_errno() != ENOENT;
}

std::string list_hint(const std::string& root) {
  return "`infercluster checkpoint ls " + root + "` shows what is there";
}

}  // namespace

Result<Listing> list(const std::string& root) {
  io::FileCalls& calls = io::system_files();
  IC_TRY(const io::Directory directory, calls.open_directory(root));
  IC_TRY(const bool single, is_checkpoint(calls, directory));
  if (single) {
    return Error(ErrorCode::invalid_argument, "it is one checkpoint, and no folder of them")
        .with_path(root)
        .with_hint("Name the folder that holds it");
  }
  return list_root(calls, directory);
}

Result<std::unique_ptr<Checkpoint>> open_at(const std::string& place, std::optional<std::uint64_t> step) {
  io::FileCalls& calls = io::system_files();
  IC_TRY(const io::Directory directory, calls.open_directory(place));
  IC_TRY(const bool single, is_checkpoint(calls, directory));
  if (single) {
    IC_TRY(auto checkpoint, Checkpoint::open_directory(calls, directory));
    if (!step || *step == checkpoint->commit().step) return checkpoint;
    return Error(ErrorCode::not_found, "it is the checkpoint of step " + std::to_string(checkpoint->commit().step) +
                                           ", and not of step " + std::to_string(*step))
        .with_path(place);
  }
  IC_TRY(const bool stock, is_stock_dcp(calls, directory));
  if (stock) return stock_dcp_error(directory);
  if (!step) {
    IC_TRY(step, newest_whole_step(calls, directory));
    if (!step) {
      return Error(ErrorCode::not_found, "there is no checkpoint that is committed and whole")
          .with_path(place)
          .with_hint(list_hint(place));
    }
  }
  auto checkpoint = Checkpoint::open(calls, place, *step);
  if (checkpoint.ok() || checkpoint.error().system_errno() != ENOENT || !checkpoint.error().hint().empty())
    return checkpoint;
  return std::move(checkpoint).error().with_hint(list_hint(place));
}

Result<RestoreOptions> restore_options_from_environment() {
  IC_TRY(const load::Options options, options_from_environment());
  return RestoreOptions{options.backend, options.direct};
}

Result<std::vector<Removal>> remove(const std::string& root, const std::vector<std::uint64_t>& steps) {
  io::FileCalls& calls = io::system_files();
  IC_TRY(const io::Directory directory, calls.open_directory(root));
  std::vector<Removal> removals;
  for (const std::uint64_t step : steps) {
    const Status removed = remove_step(calls, directory, step, random_id(), Remove::committed_too);
    const bool gone = removed.ok() || (removed.error().system_errno() == ENOENT && !is_there(calls, directory, step));
    removals.push_back({step, gone ? std::nullopt : std::optional<Error>(removed.error())});
  }
  return removals;
}

}  // namespace infercluster::checkpoint
