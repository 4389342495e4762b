// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/part_saver.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/units.h"
#include "checkpoint/cover.h"
#include "checkpoint/drain.h"
#include "checkpoint/staging.h"
#include "io/governor.h"
#include "os/file.h"
#include "pfs/calls.h"

namespace infercluster::checkpoint {
namespace {

constexpr std::uint64_t kBufferBytes = 256 * kMiB;  // two windows: one is filled while the other is written
constexpr auto kLookAgain = std::chrono::milliseconds(20);

// The directory's parent, and its name there.
struct Place {
  io::Directory parent;
  std::string name;
};

Result<Place> place_of(io::FileCalls& calls, std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos || slash + 1 == path.size()) {
    return Error(ErrorCode::invalid_argument,
                 "the directory of a checkpoint must be an absolute path, and not the root")
        .with_path(path);
  }
  IC_TRY(io::Directory parent, calls.open_directory(slash == 0 ? "/" : path.substr(0, slash)));
  return Place{std::move(parent), path.substr(slash + 1)};
}

Status check_cover(const Pieces& held, const std::string& path) {
  std::map<std::string, std::vector<const Piece*>> by_tensor;
  for (const Piece& piece : held) {
    IC_TRY(const std::uint64_t bytes, check_piece(piece));
    auto& pieces = by_tensor[piece.tensor];
    if (!pieces.empty() && (pieces[0]->dtype != piece.dtype || pieces[0]->shape != piece.shape)) {
      return Error(ErrorCode::invalid_argument, "two ranks give it different dtypes or shapes")
          .with_path(path)
          .with_tensor(piece.tensor);
    }
    if (bytes > 0 || pieces.empty()) pieces.push_back(&piece);
  }
  for (const auto& [name, pieces] : by_tensor) {
    std::vector<const Box*> boxes;
    for (const Piece* piece : pieces) {
      if (*check_piece(*piece) > 0) boxes.push_back(&piece->box);
    }
    if (const auto flaw = find_flaw(pieces[0]->shape, boxes)) {
      return Error(ErrorCode::invalid_argument, "it cannot be saved so: " + flaw->text)
          .with_path(path)
          .with_tensor(name)
          .with_hint("Every element must be saved by one rank, and by one alone");
    }
  }
  return {};
}

}  // namespace

PartSaver::PartSaver(const Options& options)
    : calls_(options.calls != nullptr ? *options.calls : io::system_files()),
      visible_deadline_(options.visible_deadline),
      buffers_(options.buffer_bytes != 0 ? options.buffer_bytes : kBufferBytes),
      foreground_(options.foreground) {
  if (options.calls == nullptr) write_.layouts = &pfs::system_calls();
}

Result<SaveTicket> PartSaver::begin(const std::string& directory, Exists exists) {
  IC_TRY(const Place place, place_of(calls_, directory));
  IC_TRY(const Begun begun, begin_beside(calls_, place.parent, place.name, exists, random_id()));
  return SaveTicket{begun.epoch, begun.save_id};
}

Result<Begun> PartSaver::join(const std::string& directory, const SaveTicket& ticket) {
  IC_TRY(const Place place, place_of(calls_, directory));
  const auto deadline = steady_clock().now() + visible_deadline_;
  const auto waiting = [deadline] {
    if (steady_clock().now() >= deadline) return false;
    std::this_thread::sleep_for(kLookAgain);
    return true;
  };
  auto begun = join_beside(calls_, place.parent, place.name, ticket.epoch, ticket.save_id, waiting);
  if (begun.ok()) return begun;
  return std::move(begun).error().with_hint(
      "The first rank began a save there, and this rank does not see it: all ranks must see one file system");
}

// Null: there is nobody to give way to.
Result<io::DrainGovernor*> PartSaver::drain_of(const io::Directory& directory) {
  IC_TRY(const os::FileIdentity identity, os::identity_of(directory.fd));
  const std::lock_guard lock(mutex_);
  auto& drain = drains_[identity.device];
  if (drain == nullptr) drain = make_drain_governor(foreground_, identity.device);
  return drain.get();
}

Result<SavedPart> PartSaver::write(const std::string& directory, const SaveTicket& ticket, std::uint64_t node,
                                   std::uint64_t world, const State& state, std::uint64_t max_write_rate) {
  Pieces pieces;
  for (const HostPiece& source : state.pieces) {
    IC_CHECK(check_piece(source.piece));
    IC_CHECK(check_source(source));
    pieces.push_back(source.piece);
  }
  std::vector<std::size_t> all(pieces.size());
  std::iota(all.begin(), all.end(), 0);
  IC_TRY(Layout layout, lay_out(pieces, all));
  IC_TRY(const Begun begun, join(directory, ticket));
  IC_TRY(io::DrainGovernor* const drain, drain_of(begun.directory));
  ImageWindows image;
  std::thread stager;
  if (!layout.chunks.empty()) {
    stager = start_thread("ic-stage", [&] {
      SaveReport report;
      const Status staged = stage(layout, state, Wait::until_staged, buffers_, image, report);
      if (!staged.ok()) image.fail(staged.error());
    });
  }
  WriteOptions options = write_;
  options.files_at_once = static_cast<unsigned>(std::min<std::uint64_t>(world, UINT32_MAX));
  options.drain = drain;
  io::Governor limit(steady_clock(), {.foreground = 0, .fill = 0, .drain = max_write_rate});
  if (max_write_rate != 0) options.governor = &limit;
  SavedPart part;
  std::atomic<std::uint64_t> written{0};
  auto index = write_part(
      calls_, begun, node, layout, {}, state.metadata, [&image] { return image.pop(); }, options, written, part.report);
  image.abandon();
  if (stager.joinable()) stager.join();
  if (!index.ok()) {
    remove_part(calls_, begun, node, {});
    return std::move(index).error();
  }
  part.index = std::move(index).value();
  if (drain != nullptr) part.throttled = drain->report();
  part.bytes = layout.chunks.empty() ? 0 : layout.bytes;
  return part;
}

Status PartSaver::commit(const std::string& directory, const SaveTicket& ticket, std::uint64_t world,
                         std::vector<manifest::IndexReference> parts, const Pieces& held) {
  IC_CHECK(check_cover(held, directory));
  IC_TRY(const Place place, place_of(calls_, directory));
  IC_TRY(const Begun begun, join(directory, ticket));
  const std::string plan_hash = digest_of(encode_pieces(held));
  IC_CHECK(commit_save(calls_, place.parent, begun, commit_of(begun, world, plan_hash, std::move(parts))));
  const Status tidied = finish_replacement(calls_, begun);
  if (!tidied.ok()) log_warning("cannot tidy up: " + tidied.error().to_string());
  return {};
}

Status PartSaver::discard(const std::string& directory, const SaveTicket& ticket) {
  IC_TRY(const Place place, place_of(calls_, directory));
  IC_TRY(const Begun begun,
         join_beside(calls_, place.parent, place.name, ticket.epoch, ticket.save_id, [] { return false; }));
  return discard_save(calls_, place.parent, begun);
}

}  // namespace infercluster::checkpoint
