// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/listing.h"

#include <algorithm>
#include <cerrno>

#include "checkpoint/directory.h"
#include "checkpoint/names.h"
#include "os/file.h"

namespace infercluster::checkpoint {
namespace {

// What cannot be looked at does not count.
std::uint64_t bytes_in(io::FileCalls& calls, const io::Directory& directory) {
  std::uint64_t bytes = 0;
  const auto entries = calls.list(directory);
  if (!entries.ok()) return 0;
  for (const io::Entry& entry : *entries) {
    if (entry.is_directory) continue;
    const auto size = calls.size_of(directory, entry.name);
    if (size.ok()) bytes += *size;
  }
  return bytes;
}

// The record keeps the time of its making when it gets its plain name.
std::optional<std::int64_t> time_of_commit(const io::Directory& directory, std::uint64_t epoch) {
  for (const std::string& name : {commit_name(epoch), std::string(kCommitName)}) {
    const auto file = os::open_for_reading(directory.path + "/" + name);
    if (!file.ok()) continue;
    const auto identity = os::identity_of(*file);
    if (identity.ok()) return identity->mtime_ns;
  }
  return std::nullopt;
}

ListedStep look_at(io::FileCalls& calls, const io::Directory& directory, std::uint64_t step) {
  ListedStep listed;
  listed.step = step;
  listed.bytes = bytes_in(calls, directory);
  const auto commit = read_commit(calls, directory);
  if (!commit.ok()) {
    listed.problem = commit.error();
    return listed;
  }
  if (!commit->has_value()) {
    const auto stock = is_stock_dcp(calls, directory);
    listed.stock_dcp = stock.ok() && *stock;
    return listed;
  }
  listed.durable = true;
  listed.epoch = (*commit)->epoch;
  listed.world = (*commit)->world;
  listed.committed_ns = time_of_commit(directory, listed.epoch);
  const Status whole = check_indexes(calls, directory, **commit);
  listed.verified = whole.ok();
  if (!whole.ok()) listed.problem = whole.error();
  return listed;
}

}  // namespace

const ListedStep* Listing::find(std::uint64_t step) const {
  const auto found = std::find_if(steps.begin(), steps.end(), [step](const ListedStep& s) { return s.step == step; });
  return found == steps.end() ? nullptr : &*found;
}

Result<Listing> list_root(io::FileCalls& calls, const io::Directory& root) {
  IC_TRY(const std::vector<io::Entry> entries, calls.list(root));
  Listing listing;
  for (const io::Entry& entry : entries) {
    const auto step = parse_step_name(entry.name);
    if (!entry.is_directory || (!step && !is_trash_name(entry.name))) continue;
    const auto directory = calls.open_directory_in(root, entry.name);
    if (!directory.ok() && directory.error().system_errno() == ENOENT) continue;  // gone meanwhile
    if (!step) {
      listing.trash.push_back({entry.name, directory.ok() ? bytes_in(calls, *directory) : 0});
    } else if (directory.ok()) {
      listing.steps.push_back(look_at(calls, *directory, *step));
    } else {
      ListedStep closed;
      closed.step = *step;
      closed.problem = directory.error();
      listing.steps.push_back(std::move(closed));
    }
  }
  std::sort(listing.steps.begin(), listing.steps.end(),
            [](const ListedStep& a, const ListedStep& b) { return a.step < b.step; });
  std::sort(listing.trash.begin(), listing.trash.end(), [](const Trash& a, const Trash& b) { return a.name < b.name; });
  for (const ListedStep& step : listing.steps) {
    if (step.verified) listing.latest = step.step;
  }
  return listing;
}

std::vector<std::uint64_t> choose_to_remove(const Listing& listing, const Retention& retention) {
  std::vector<std::uint64_t> verified;
  const ListedStep* newest = nullptr;
  for (const ListedStep& step : listing.steps) {
    if (!step.verified) continue;
    verified.push_back(step.step);
    if (newest == nullptr || step.committed_ns.value_or(0) >= newest->committed_ns.value_or(0)) newest = &step;
  }
  if (newest == nullptr) return {};
  std::vector<std::uint64_t> gone = choose_to_remove(verified, newest->step, retention);
  std::erase(gone, *listing.latest);
  std::sort(gone.begin(), gone.end());
  return gone;
}

}  // namespace infercluster::checkpoint
