// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/directory.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <numeric>
#include <thread>

#include "base/log.h"
#include "base/random.h"
#include "base/thread.h"
#include "checkpoint/names.h"
#include "checksum/crc32c.h"
#include "os/limits.h"

namespace infercluster::checkpoint {
namespace {

// A large job leaves a GiB of indexes, and reading them is work for the processor: from so many on, several threads
// share it. Fewer are read in their order, as tests of each file-system call want it.
constexpr std::size_t kSharedFrom = 16;
constexpr unsigned kReadersMax = 16;
constexpr int kListings = 4;  // each record is renamed twice at most

std::string path_in(const io::Directory& directory, const std::string& name) {
  return directory.path + "/" + name;
}

// The record of this name; nothing where there is none.
Result<std::optional<manifest::Commit>> read_record(io::FileCalls& calls, const io::Directory& directory,
                                                    const std::string& name) {
  auto text = calls.read_small(directory, name, manifest::kCommitBytesMax);
  if (!text.ok()) {
    if (text.error().system_errno() == ENOENT) return std::optional<manifest::Commit>();
    return std::move(text).error();
  }
  auto commit = manifest::parse_commit(*text);
  if (!commit.ok()) return std::move(commit).error().with_path(path_in(directory, name));
  return std::optional<manifest::Commit>(std::move(commit).value());
}

Status check_segment(io::FileCalls& calls, const io::Directory& directory, const manifest::Segment& segment) {
  const auto size = calls.size_of(directory, segment.name);
  if (!size.ok()) return size.error();
  if (*size == segment.bytes) return {};
  return Error(ErrorCode::corrupt,
               "expected " + std::to_string(segment.bytes) + " bytes, found " + std::to_string(*size))
      .with_path(path_in(directory, segment.name))
      .with_hint("The file was cut or changed after it was saved; use another checkpoint");
}

Result<manifest::Index> read_index(io::FileCalls& calls, const io::Directory& directory, const manifest::Commit& commit,
                                   const manifest::IndexReference& reference) {
  const std::string path = path_in(directory, reference.name);
  IC_TRY(const std::string text, calls.read_small(directory, reference.name, manifest::kIndexBytesMax));
  const std::uint32_t crc = checksum::crc32c(std::as_bytes(std::span(text)));
  if (text.size() != reference.bytes || crc != reference.crc32c)
    return Error(ErrorCode::corrupt, "it is not the index that was committed: size or checksum differ").with_path(path);
  auto index = manifest::parse_index(text);
  if (!index.ok()) return std::move(index).error().with_path(path);
  if (index->step != commit.step || index->epoch != commit.epoch || index->save_id != commit.save_id)
    return Error(ErrorCode::corrupt, "it belongs to another save than the commit record").with_path(path);
  return index;
}

// What cannot be looked at does not count.
bool counts_as_stock(io::FileCalls& calls, const io::Directory& directory, StockDcp stock) {
  if (stock == StockDcp::passed_over) return false;
  const auto found = is_stock_dcp(calls, directory);
  return found.ok() && *found;
}

Result<manifest::Index> read_whole_index(io::FileCalls& calls, const io::Directory& directory,
                                         const manifest::Commit& commit, const manifest::IndexReference& reference) {
  IC_TRY(manifest::Index index, read_index(calls, directory, commit, reference));
  for (const manifest::Segment& segment : index.segments) IC_CHECK(check_segment(calls, directory, segment));
  return index;
}

std::vector<std::uint64_t> all_of(const manifest::Commit& commit) {
  std::vector<std::uint64_t> positions(commit.indexes.size());
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

// Calls `use` with each position and its index; by several threads, where there are many.
using UseIndex = std::function<void(std::uint64_t at, manifest::Index&& index)>;
Status for_each_index(io::FileCalls& calls, const io::Directory& directory, const manifest::Commit& commit,
                      std::span<const std::uint64_t> positions, const UseIndex& use) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::optional<Error> error;        // of the first index in order that has one; guarded by mutex
  std::size_t failed_at = SIZE_MAX;  // guarded by mutex
  const auto work = [&] {
    for (std::size_t i = next++; i < positions.size(); i = next++) {
      auto index = read_whole_index(calls, directory, commit, commit.indexes[positions[i]]);
      if (index.ok()) {
        use(positions[i], std::move(index).value());
        continue;
      }
      next = positions.size();  // those before this one are on their way
      const std::lock_guard lock(mutex);
      if (i >= failed_at) return;
      error = index.error();
      failed_at = i;
      return;
    }
  };
  const bool shared = positions.size() >= kSharedFrom;
  const unsigned readers = shared ? std::min(os::usable_processors(), kReadersMax) : 1;
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < readers; ++i) threads.push_back(start_thread("ic-index", work));
  work();
  for (std::thread& thread : threads) thread.join();
  return error ? Status(*std::move(error)) : Status();
}

}  // namespace

Result<std::optional<manifest::Commit>> read_commit(io::FileCalls& calls, const io::Directory& directory) {
  std::optional<manifest::Commit> newest;
  // While finish_replacement() gives the record its plain name, one that was listed may be gone when it is read.
  for (int attempt = 0; attempt < kListings; ++attempt) {
    IC_TRY(const std::vector<io::Entry> entries, calls.list(directory));
    bool is_gone = false;
    for (const io::Entry& entry : entries) {
      if (!epoch_of_commit(entry.name)) continue;
      IC_TRY(std::optional<manifest::Commit> commit, read_record(calls, directory, entry.name));
      is_gone |= !commit;
      if (commit && (!newest || commit->epoch > newest->epoch)) newest = std::move(commit);
    }
    if (!is_gone) break;
  }
  return newest;
}

Result<std::vector<manifest::Index>> read_indexes(io::FileCalls& calls, const io::Directory& directory,
                                                  const manifest::Commit& commit) {
  return read_indexes(calls, directory, commit, all_of(commit));
}

Result<std::vector<manifest::Index>> read_indexes(io::FileCalls& calls, const io::Directory& directory,
                                                  const manifest::Commit& commit,
                                                  std::span<const std::uint64_t> positions) {
  std::vector<manifest::Index> indexes(commit.indexes.size());
  IC_CHECK(for_each_index(calls, directory, commit, positions,
                          [&](std::uint64_t at, manifest::Index&& index) { indexes[at] = std::move(index); }));
  return indexes;
}

Status check_indexes(io::FileCalls& calls, const io::Directory& directory, const manifest::Commit& commit) {
  return for_each_index(calls, directory, commit, all_of(commit), [](std::uint64_t, manifest::Index&&) {});
}

Result<std::optional<std::uint64_t>> epoch_begun(io::FileCalls& calls, const io::Directory& directory,
                                                 const std::string& save_id, std::uint64_t committed) {
  IC_TRY(const std::vector<io::Entry> entries, calls.list(directory));
  std::optional<std::uint64_t> begun;
  for (const io::Entry& entry : entries) {
    const auto epoch = epoch_of_file(entry.name);
    if (!epoch || *epoch <= committed || entry.name != mark_name(*epoch, save_id)) continue;
    begun = std::max(begun.value_or(0), *epoch);
  }
  return begun;
}

Result<Standing> standing_of(io::FileCalls& calls, const io::Directory& root, std::uint64_t step,
                             const std::string& save_id) {
  auto directory = calls.open_directory_in(root, step_name(step));
  if (!directory.ok() && directory.error().system_errno() == ENOENT) return Standing{};
  if (!directory.ok()) return std::move(directory).error();
  IC_TRY(const auto committed, read_commit(calls, *directory));
  if (committed && committed->save_id == save_id) return Standing{.is_durable = true, .begun = {}};
  IC_TRY(const auto begun, epoch_begun(calls, *directory, save_id, committed ? committed->epoch : 0));
  return Standing{.is_durable = false, .begun = begun};
}

Result<std::vector<std::uint64_t>> list_steps(io::FileCalls& calls, const io::Directory& root) {
  IC_TRY(const std::vector<io::Entry> entries, calls.list(root));
  std::vector<std::uint64_t> steps;
  for (const io::Entry& entry : entries) {
    const auto step = parse_step_name(entry.name);
    if (step && entry.is_directory) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

Result<bool> is_stock_dcp(io::FileCalls& calls, const io::Directory& directory) {
  IC_TRY(const std::vector<io::Entry> entries, calls.list(directory));
  bool has_metadata = false;
  bool has_data = false;
  for (const io::Entry& entry : entries) {
    if (entry.is_directory) continue;
    if (epoch_of_commit(entry.name)) return false;
    has_metadata |= entry.name == ".metadata";
    has_data |= entry.name.starts_with("__") && entry.name.ends_with(".distcp");
  }
  return has_metadata && has_data;
}

Error stock_dcp_error(const io::Directory& directory) {
  return Error(ErrorCode::unsupported, "it is a stock checkpoint of torch.distributed.checkpoint")
      .with_path(directory.path)
      .with_hint(
          "Checkpointer.load and infercluster.dcp.Reader in Python read it; `infercluster checkpoint import` makes "
          "it one of ours");
}

Result<std::vector<std::uint64_t>> committed_steps(io::FileCalls& calls, const io::Directory& root, StockDcp stock) {
  IC_TRY(const std::vector<std::uint64_t> all, list_steps(calls, root));
  std::vector<std::uint64_t> steps;
  for (const std::uint64_t step : all) {
    const auto directory = calls.open_directory_in(root, step_name(step));
    if (!directory.ok()) continue;  // gone meanwhile
    const auto commit = read_commit(calls, *directory);
    if (!commit.ok()) log_warning("this checkpoint does not count as one: " + commit.error().to_string());
    if (commit.ok() && (commit->has_value() || counts_as_stock(calls, *directory, stock))) steps.push_back(step);
  }
  return steps;
}

bool is_whole(io::FileCalls& calls, const io::Directory& root, std::uint64_t step) {
  const auto directory = calls.open_directory_in(root, step_name(step));
  if (!directory.ok()) return false;
  const auto commit = read_commit(calls, *directory);
  if (commit.ok() && !commit->has_value()) return false;
  const Status whole = commit.ok() ? check_indexes(calls, *directory, **commit) : Status(commit.error());
  if (!whole.ok()) log_warning("this checkpoint does not count as one: " + whole.error().to_string());
  return whole.ok();
}

Result<std::optional<std::uint64_t>> newest_whole_step(io::FileCalls& calls, const io::Directory& root,
                                                       StockDcp stock) {
  IC_TRY(std::vector<std::uint64_t> steps, list_steps(calls, root));
  std::ranges::reverse(steps);
  for (const std::uint64_t step : steps) {
    if (is_whole(calls, root, step)) return std::optional<std::uint64_t>(step);
    if (stock == StockDcp::passed_over) continue;
    const auto directory = calls.open_directory_in(root, step_name(step));
    if (directory.ok() && counts_as_stock(calls, *directory, stock)) return std::optional<std::uint64_t>(step);
  }
  return std::optional<std::uint64_t>();
}

std::string random_id() {
  return random_hex(8);
}

}  // namespace infercluster::checkpoint
