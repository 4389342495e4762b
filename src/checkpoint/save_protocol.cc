// SPDX-License-Identifier: Apache-2.0
// How a save begins and becomes a checkpoint. See checkpoint/directory.h.
#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "checkpoint/directory.h"
#include "checkpoint/names.h"
#include "checkpoint/segment_writer.h"

namespace infercluster::checkpoint {
namespace {

// Above what any save in this directory used, finished or not.
Result<std::uint64_t> next_epoch(io::FileCalls& calls, const io::Directory& directory, std::uint64_t committed) {
  IC_TRY(const std::vector<io::Entry> entries, calls.list(directory));
  std::uint64_t highest = committed;
  for (const io::Entry& entry : entries) highest = std::max(highest, epoch_of_file(entry.name).value_or(0));
  if (highest == UINT64_MAX) return Error(ErrorCode::io, "no epoch is left").with_path(directory.path);
  return highest + 1;
}

Error exists_already(const io::Directory& directory, const std::string& what) {
  return Error(ErrorCode::invalid_argument, what + " is saved already")
      .with_path(directory.path)
      .with_hint("To save it again, as after a rollback, ask for exists=replace");
}

std::string entry_name(const Begun& begun) {
  return begun.name.empty() ? step_name(begun.step) : begun.name;
}

// The directory of this name once it bears this save's mark.
Result<io::Directory> open_marked(io::FileCalls& calls, const io::Directory& parent, const std::string& name,
                                  const std::string& mark, const std::function<bool()>& waiting) {
  while (true) {
    // Opened anew each time: the one that was open may be an earlier save's, renamed away since.
    auto directory = calls.open_directory_in(parent, name);
    Status seen = directory.ok() ? Status() : Status(directory.error());
    if (seen.ok()) {
      const auto found = calls.size_of(*directory, mark);
      if (found.ok()) return directory;
      seen = found.error();
    }
    const int error = seen.error().system_errno();
    if ((error != ENOENT && error != ESTALE) || !waiting()) return std::move(seen).error();
  }
}

Result<Begun> begin_replacement(io::FileCalls& calls, io::Directory directory, const manifest::Commit& old,
                                std::uint64_t step, Exists exists, const std::string& id) {
  if (exists == Exists::error) return exists_already(directory, "step " + std::to_string(step));
  IC_TRY(const std::uint64_t epoch, next_epoch(calls, directory, old.epoch));
  IC_CHECK(write_small_file(calls, directory, mark_name(epoch, id), ""));
  return Begun{std::move(directory), step, epoch, id};
}

Error cannot_link(const Error& cause, const std::string& path) {
  return Error::from_errno(cause.system_errno(), "the file system cannot make the link that commits a checkpoint")
      .with_path(path)
      .with_hint("Save onto a file system with hard links: local ones, NFS, Lustre, GPFS and CephFS have them");
}

// Whether the record that counts is this save's own.
Result<bool> is_committed(io::FileCalls& calls, const Begun& begun) {
  IC_TRY(const auto found, read_commit(calls, begun.directory));
  return found && found->epoch == begun.epoch && found->save_id == begun.save_id;
}

Status publish(io::FileCalls& calls, const Begun& begun, bool replaces) {
  const std::string from = commit_temporary_name(begun.epoch);
  const std::string to = replaces ? commit_name(begun.epoch) : std::string(kCommitName);
  const Status linked = calls.link(begun.directory, from, to);
  if (linked.ok()) return {};
  const int error = linked.error().system_errno();
  if (error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK)
    return cannot_link(linked.error(), begun.directory.path);
  // It may be there all the same (an answer that was lost), or somebody else's may be: the contents decide.
  const auto committed = is_committed(calls, begun);
  if (committed.ok() && *committed) return {};
  if (committed.ok() && error == EEXIST) {
    return Error(ErrorCode::changed, "another save of this step was committed meanwhile")
        .with_path(begun.directory.path + "/" + to)
        .with_hint("Two jobs save to one place, or a stopped one went on; its checkpoint stays");
  }
  return linked.error();
}

}  // namespace

Result<Begun> begin_save(io::FileCalls& calls, const io::Directory& root, std::uint64_t step, Exists exists,
                         const std::string& id) {
  const std::string name = step_name(step);
  Status made = calls.make_directory(root, name);
  if (!made.ok()) {
    if (made.error().system_errno() != EEXIST) return std::move(made).error();
    IC_TRY(io::Directory there, calls.open_directory_in(root, name));
    IC_TRY(const auto old, read_commit(calls, there));
    if (old) return begin_replacement(calls, std::move(there), *old, step, exists, id);
    log_warning(there.path + ": removing what an interrupted save left behind");
    IC_CHECK(remove_step(calls, root, step, id, Remove::uncommitted_only));
    IC_CHECK(calls.make_directory(root, name));
  }
  IC_TRY(io::Directory directory, calls.open_directory_in(root, name));
  IC_CHECK(write_small_file(calls, directory, mark_name(1, id), ""));
  return Begun{std::move(directory), step, 1, id};
}

Result<Begun> join_save(io::FileCalls& calls, const io::Directory& root, std::uint64_t step, std::uint64_t epoch,
                        const std::string& save_id, const std::function<bool()>& waiting) {
  IC_TRY(io::Directory directory, open_marked(calls, root, step_name(step), mark_name(epoch, save_id), waiting));
  return Begun{std::move(directory), step, epoch, save_id};
}

Result<Begun> begin_beside(io::FileCalls& calls, const io::Directory& parent, const std::string& name, Exists exists,
                           const std::string& id) {
  IC_TRY(io::Directory directory, calls.open_directory_in(parent, name));
  IC_TRY(const auto old, read_commit(calls, directory));
  if (old && exists == Exists::error) return exists_already(directory, "this checkpoint");
  IC_TRY(const std::uint64_t epoch, next_epoch(calls, directory, old ? old->epoch : 0));
  IC_CHECK(write_small_file(calls, directory, mark_name(epoch, id), ""));
  return Begun{std::move(directory), parse_step_name(name).value_or(0), epoch, id, name};
}

Result<Begun> join_beside(io::FileCalls& calls, const io::Directory& parent, const std::string& name,
                          std::uint64_t epoch, const std::string& save_id, const std::function<bool()>& waiting) {
  IC_TRY(io::Directory directory, open_marked(calls, parent, name, mark_name(epoch, save_id), waiting));
  return Begun{std::move(directory), parse_step_name(name).value_or(0), epoch, save_id, name};
}

Status commit_save(io::FileCalls& calls, const io::Directory& parent, const Begun& begun,
                   const manifest::Commit& commit) {
  IC_TRY(const std::string text, manifest::build_commit(commit));
  IC_TRY(const auto old, read_commit(calls, begun.directory));
  IC_CHECK(write_small_file(calls, begun.directory, commit_temporary_name(begun.epoch), text));
  IC_CHECK(publish(calls, begun, old.has_value()));
  IC_CHECK(calls.sync_directory(begun.directory));
  IC_CHECK(calls.sync_directory(parent));
  // A sweep may have renamed the directory away just before the link, or a later epoch may have been faster.
  IC_TRY(const bool here, calls.is_entry(parent, entry_name(begun), begun.directory));
  IC_TRY(const bool counts, is_committed(calls, begun));
  if (here && counts) return {};
  return Error(ErrorCode::changed, here ? "a later save of this step was committed meanwhile"
                                        : "the directory was removed while it was written")
      .with_path(begun.directory.path)
      .with_hint("Two jobs save to one place, or a stopped one went on; nothing of the other is harmed");
}

Status finish_replacement(io::FileCalls& calls, const Begun& begun) {
  IC_TRY(const std::vector<io::Entry> entries, calls.list(begun.directory));
  IC_TRY(const auto counts, read_commit(calls, begun.directory));
  if (!counts || counts->epoch != begun.epoch) return {};  // a later one cleans up
  const std::string own = commit_name(begun.epoch);
  const bool moves = std::any_of(entries.begin(), entries.end(), [&](const auto& e) { return e.name == own; });
  for (const io::Entry& entry : entries) {
    const auto epoch = epoch_of_file(entry.name);
    // "COMMIT" is the old record while ours has the longer name, and ours when it has not.
    const bool old = epoch && (entry.name == kCommitName ? moves : *epoch < begun.epoch);
    const bool spent = entry.name == commit_temporary_name(begun.epoch) ||
                       entry.name == mark_name(begun.epoch, begun.save_id) ||
                       (is_progress_name(entry.name) && epoch == begun.epoch);
    if (old || spent) IC_CHECK(calls.remove(begun.directory, entry.name));
  }
  if (moves) {
    IC_CHECK(calls.sync_directory(begun.directory));
    IC_CHECK(calls.link(begun.directory, own, std::string(kCommitName)));
    IC_CHECK(calls.sync_directory(begun.directory));  // the short name must last before the long one goes
    IC_CHECK(calls.remove(begun.directory, own));
  }
  return {};
}

Status discard_save(io::FileCalls& calls, const io::Directory& parent, const Begun& begun) {
  IC_TRY(const auto counts, read_commit(calls, begun.directory));
  if (counts && counts->epoch == begun.epoch) return {};  // committed after all
  if (!counts && begun.name.empty()) {
    IC_TRY(const bool here, calls.is_entry(parent, step_name(begun.step), begun.directory));
    if (here) return remove_step(calls, parent, begun.step, begun.save_id, Remove::uncommitted_only);
    return {};
  }
  IC_TRY(const std::vector<io::Entry> entries, calls.list(begun.directory));
  for (const io::Entry& entry : entries) {
    if (epoch_of_file(entry.name) == begun.epoch) IC_CHECK(calls.remove(begun.directory, entry.name));
  }
  return {};
}

}  // namespace infercluster::checkpoint
