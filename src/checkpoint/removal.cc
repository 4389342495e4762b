// SPDX-License-Identifier: Apache-2.0
// How the directory of a step goes. See checkpoint/directory.h.
#include <cerrno>

#include "checkpoint/directory.h"
#include "checkpoint/names.h"

namespace infercluster::checkpoint {
namespace {

// What a save makes, and the file that DCP users' tools look for.
bool is_ours(const io::Entry& entry) {
  return !entry.is_directory && (epoch_of_file(entry.name) || entry.name == ".metadata");
}

Error holds_others(const io::Directory& directory, const std::string& name) {
  return Error(ErrorCode::invalid_argument, "it holds files that are not ours (" + name + "), and stays")
      .with_path(directory.path)
      .with_hint("Move them elsewhere, or remove the directory by hand");
}

Status check_all_ours(io::FileCalls& calls, const io::Directory& directory) {
  IC_TRY(const std::vector<io::Entry> entries, calls.list(directory));
  for (const io::Entry& entry : entries) {
    if (!is_ours(entry)) return holds_others(directory, entry.name);
  }
  return {};
}

// Without a name the file is nobody's but ours; its space goes piece by piece, and at the latest with the descriptor.
Status remove_slowly(io::FileCalls& calls, const io::Directory& directory, const std::string& name,
                     const FreePace& pace) {
  const auto size = calls.size_of(directory, name);
  if (pace == nullptr || !size.ok() || *size <= kFreedAtOnce) return calls.remove(directory, name);
  const auto file = calls.open_to_write(directory, name);
  IC_CHECK(calls.remove(directory, name));
  if (!file.ok()) return {};
  const auto forgotten = calls.is_forgotten(*file);
  if (!forgotten.ok() || !*forgotten) return {};
  for (std::uint64_t left = *size; left > kFreedAtOnce;) {
    left -= kFreedAtOnce;
    pace();
    if (!calls.set_size(*file, left).ok()) break;
  }
  pace();
  return {};
}

Status empty(io::FileCalls& calls, const io::Directory& directory, const FreePace& pace) {
  IC_TRY(const std::vector<io::Entry> entries, calls.list(directory));
  for (const io::Entry& entry : entries) {
    if (!is_ours(entry)) return holds_others(directory, entry.name);
    Status removed = remove_slowly(calls, directory, entry.name, pace);
    if (!removed.ok() && removed.error().system_errno() != ENOENT) return removed;
  }
  return {};
}

}  // namespace

Status remove_step(io::FileCalls& calls, const io::Directory& root, std::uint64_t step, const std::string& id,
                   Remove what, const FreePace& pace) {
  const std::string name = step_name(step);
  const std::string trash = trash_name(step, id);
  IC_TRY(const io::Directory directory, calls.open_directory_in(root, name));
  IC_CHECK(check_all_ours(calls, directory));
  IC_CHECK(calls.rename(root, name, trash));
  IC_CHECK(calls.sync_directory(root));
  if (what == Remove::uncommitted_only) {
    // Its writer may have committed it until the rename; afterwards it finds out that it was renamed.
    const auto commit = read_commit(calls, directory);
    if (!commit.ok() || commit->has_value()) {
      IC_CHECK(calls.rename(root, trash, name));
      IC_CHECK(calls.sync_directory(root));
      if (!commit.ok()) return commit.error();
      return Error(ErrorCode::changed, "its save was committed just now").with_path(directory.path);
    }
  }
  return remove_trash(calls, root, trash, pace);
}

Status remove_trash(io::FileCalls& calls, const io::Directory& root, const std::string& name, const FreePace& pace) {
  if (!is_trash_name(name)) return Error(ErrorCode::invalid_argument, "not a name of ours").with_path(name);
  IC_TRY(const io::Directory directory, calls.open_directory_in(root, name));
  IC_CHECK(empty(calls, directory, pace));
  Status removed = calls.remove_directory(root, name);
  if (!removed.ok() && removed.error().system_errno() != ENOENT) return removed;
  return {};
}

}  // namespace infercluster::checkpoint
