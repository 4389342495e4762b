// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/fast_tier.h"

#include <sys/statvfs.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "checkpoint/names.h"
#include "exchange/wire.h"

namespace infercluster::checkpoint {
namespace {

constexpr std::uint64_t kPartsMax = 1U << 20;  // that one rank may speak of

Result<io::Directory> make_and_open(io::FileCalls& calls, const io::Directory& parent, const std::string& name) {
  const Status made = calls.make_directory(parent, name);
  if (!made.ok() && made.error().system_errno() != EEXIST) return made.error();
  if (made.ok()) IC_CHECK(calls.sync_directory(parent));
  return calls.open_directory_in(parent, name);
}

Result<OpenPart> open_committed(io::FileCalls& calls, const io::Directory& rank_directory, std::uint64_t step) {
  OpenPart part;
  IC_TRY(part.directory, calls.open_directory_in(rank_directory, step_name(step)));
  IC_TRY(auto commit, read_commit(calls, part.directory));
  if (!commit || commit->indexes.size() != 1) {
    return Error(ErrorCode::not_found, "there is no part of a checkpoint that is committed")
        .with_path(part.directory.path)
        .with_hint("Use a step that the root has, or an earlier one");
  }
  part.commit = *std::move(commit);
  IC_TRY(std::vector<manifest::Index> indexes, read_indexes(calls, part.directory, part.commit));
  part.index = std::move(indexes[0]);
  return part;
}

}  // namespace

std::string encode(const std::vector<FastPart>& parts) {
  exchange::Writer out;
  out.number(parts.size());
  for (const FastPart& part : parts) {
    out.number(part.step);
    out.number(part.rank);
    out.number(part.world);
    out.text(part.save_id);
    out.text(part.plan_hash);
  }
  return out.take();
}

Result<std::vector<FastPart>> decode_parts(std::string_view bytes) {
  exchange::Reader in(bytes);
  std::vector<FastPart> parts;
  const std::uint64_t count = in.number();
  for (std::uint64_t i = 0; i < count && i < kPartsMax && !in.failed(); ++i) {
    FastPart part;
    part.step = in.number();
    part.rank = in.number();
    part.world = in.number();
    part.save_id = in.text();
    part.plan_hash = in.text();
    parts.push_back(std::move(part));
  }
  if (!in.complete() || parts.size() != count)
    return Error(ErrorCode::corrupt, "what a rank said of its fast tier is damaged");
  return parts;
}

Result<io::Directory> open_fast_tier(io::FileCalls& calls, const std::string& path) {
  std::filesystem::path place = std::filesystem::path(path).lexically_normal();
  if (!place.has_filename()) place = place.parent_path();
  auto parent = calls.open_directory(place.parent_path().string());
  if (!parent.ok()) {
    const Error& cause = parent.error();
    return Error(cause.code(), cause.message())
        .with_errno(cause.system_errno())
        .with_path(cause.path())
        .with_hint("It should hold the fast tier: mount this node's storage there, or leave out the tier");
  }
  return make_and_open(calls, *parent, place.filename().string());
}

Result<io::Directory> open_rank_directory(io::FileCalls& calls, const io::Directory& fast, std::uint64_t rank) {
  return make_and_open(calls, fast, rank_name(rank));
}

Result<std::vector<FastPart>> list_parts(io::FileCalls& calls, const io::Directory& fast) {
  IC_TRY(const std::vector<io::Entry> entries, calls.list(fast));
  std::vector<FastPart> parts;
  for (const io::Entry& entry : entries) {
    const auto rank = parse_rank_name(entry.name);
    if (!rank || !entry.is_directory) continue;
    const auto directory = calls.open_directory_in(fast, entry.name);
    if (!directory.ok()) continue;  // gone meanwhile
    IC_TRY(const std::vector<std::uint64_t> steps, list_steps(calls, *directory));
    for (const std::uint64_t step : steps) {
      const auto part = open_committed(calls, *directory, step);
      if (!part.ok() && part.error().code() == ErrorCode::not_found) continue;
      if (!part.ok()) {
        log_warning("this part of a checkpoint does not count as one: " + part.error().to_string());
        continue;
      }
      if (part->index.node == *rank)
        parts.push_back({step, *rank, part->commit.world, part->commit.save_id, part->commit.plan_hash});
    }
  }
  return parts;
}

Result<OpenPart> open_part(io::FileCalls& calls, const io::Directory& fast, std::uint64_t rank, std::uint64_t step,
                           const std::string& save_id) {
  IC_TRY(const io::Directory directory, calls.open_directory_in(fast, rank_name(rank)));
  IC_TRY(OpenPart part, open_committed(calls, directory, step));
  if (part.commit.save_id == save_id && part.index.node == rank) return part;
  return Error(ErrorCode::not_found, "another save's part of this step is there")
      .with_path(part.directory.path)
      .with_hint("Two jobs use one fast tier: give each a directory of its own");
}

Status remove_own_part(io::FileCalls& calls, const io::Directory& rank_directory, const Begun& begun) {
  IC_TRY(const auto counts, read_commit(calls, begun.directory));
  if (!counts || counts->save_id != begun.save_id) return discard_save(calls, rank_directory, begun);
  IC_TRY(const bool here, calls.is_entry(rank_directory, step_name(begun.step), begun.directory));
  if (!here) return {};
  return remove_step(calls, rank_directory, begun.step, random_id(), Remove::committed_too);
}

Status check_room(const io::Directory& directory, std::uint64_t bytes) {
  struct ::statvfs room = {};
  if (::fstatvfs(directory.fd.get(), &room) != 0)
    return Error::from_errno(errno, "cannot tell how much room there is").with_path(directory.path);
  const std::uint64_t available = std::uint64_t{room.f_bavail} * room.f_frsize;
  if (available >= bytes) return {};
  return Error(ErrorCode::too_large, "the fast tier is full: " + format_bytes(bytes) + " are wanted, " +
                                         format_bytes(available) + " are free")
      .with_errno(ENOSPC)
      .with_path(directory.path)
      .with_hint("Remove what else is there, or keep fewer checkpoints on this tier");
}

}  // namespace infercluster::checkpoint
