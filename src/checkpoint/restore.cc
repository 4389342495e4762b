// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/restore.h"

#include <algorithm>
#include <array>

#include "base/assert.h"
#include "checkpoint/cover.h"
#include "checkpoint/directory.h"
#include "checkpoint/names.h"
#include "checkpoint/restore_plan.h"
#include "checkpoint/restore_run.h"
#include "checkpoint/sources.h"

namespace infercluster::checkpoint {
namespace {

constexpr std::size_t kNamedMax = 20;  // in one message

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string text = "[";
  for (std::size_t d = 0; d < shape.size(); ++d) text += (d > 0 ? ", " : "") + std::to_string(shape[d]);
  return text + "]";
}

std::uint64_t volume_of(const std::vector<std::uint64_t>& lengths) {
  std::uint64_t volume = 1;
  for (const std::uint64_t length : lengths) volume *= length;  // within a checked shape: cannot wrap
  return volume;
}

// Of what two boxes of a tensor have in common.
std::uint64_t common_volume(const Box& a, const Box& b) {
  std::uint64_t volume = 1;
  for (std::size_t d = 0; d < a.offsets.size(); ++d) {
    const std::uint64_t begin = std::max(a.offsets[d], b.offsets[d]);
    const std::uint64_t end = std::min(a.offsets[d] + a.lengths[d], b.offsets[d] + b.lengths[d]);
    volume *= end > begin ? end - begin : 0;
  }
  return volume;
}

// "a, b and 3 more".
class NameList {
 public:
  void add(const std::string& name) {
    if (++count_ > kNamedMax) return;
    text_ += (text_.empty() ? "" : ", ") + name;
  }
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] std::string text() const {
    return count_ <= kNamedMax ? text_ : text_ + " and " + std::to_string(count_ - kNamedMax) + " more";
  }

 private:
  std::string text_;
  std::size_t count_ = 0;
};

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(io::FileCalls& calls, const std::string& root,
                                                     std::uint64_t step) {
  IC_TRY(const io::Directory parent, calls.open_directory(root));
  IC_TRY(const io::Directory directory, calls.open_directory_in(parent, step_name(step)));
  return open_directory(calls, directory);
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::open_directory(io::FileCalls& calls, const io::Directory& directory) {
  IC_TRY(auto commit, read_commit(calls, directory));
  if (!commit) {
    IC_TRY(const bool stock, is_stock_dcp(calls, directory));
    if (stock) return stock_dcp_error(directory);
    return Error(ErrorCode::not_found, "there is no commit record, so this is no checkpoint")
        .with_path(directory.path)
        .with_hint("Its save did not finish; use an earlier step");
  }
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  checkpoint->path_ = directory.path;
  checkpoint->commit_ = *std::move(commit);
  IC_TRY(checkpoint->indexes_, read_indexes(calls, directory, checkpoint->commit_));
  for (const manifest::IndexReference& index : checkpoint->commit_.indexes) checkpoint->index_bytes_ += index.bytes;
  IC_CHECK(checkpoint->gather_tensors());
  return checkpoint;
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::open_own(io::FileCalls& calls, const std::string& root,
                                                         std::uint64_t step, std::uint64_t rank, std::uint64_t world) {
  IC_TRY(const io::Directory parent, calls.open_directory(root));
  IC_TRY(const io::Directory directory, calls.open_directory_in(parent, step_name(step)));
  IC_TRY(auto commit, read_commit(calls, directory));
  if (!commit || commit->world != world || commit->indexes.size() != world || rank >= world)
    return open_directory(calls, directory);
  IC_TRY(std::vector<manifest::Index> own, read_indexes(calls, directory, *commit, std::array{rank}));
  auto others = sources_in(own[rank], world);
  if (!others || others->size() == world || own[rank].node != rank) return open_directory(calls, directory);
  std::erase(*others, rank);
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  checkpoint->path_ = directory.path;
  checkpoint->is_whole_ = false;
  IC_TRY(checkpoint->indexes_, read_indexes(calls, directory, *commit, *others));
  checkpoint->indexes_[rank] = std::move(own[rank]);
  checkpoint->index_bytes_ = commit->indexes[rank].bytes;
  for (const std::uint64_t other : *others) checkpoint->index_bytes_ += commit->indexes[other].bytes;
  checkpoint->commit_ = *std::move(commit);
  IC_CHECK(checkpoint->gather_tensors());
  return checkpoint;
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::open_parts(const std::string& fast, std::vector<OpenPart> parts) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  checkpoint->path_ = fast;
  checkpoint->commit_ = parts.at(0).commit;
  checkpoint->commit_.indexes.clear();
  for (OpenPart& part : parts) {
    IC_ASSERT(part.commit.save_id == checkpoint->commit_.save_id && part.commit.step == checkpoint->commit_.step);
    checkpoint->part_paths_.push_back(part.directory.path);
    checkpoint->commit_.indexes.push_back(part.commit.indexes.at(0));
    checkpoint->indexes_.push_back(std::move(part.index));
  }
  IC_CHECK(checkpoint->gather_tensors());
  return checkpoint;
}

Status Checkpoint::gather_tensors() {
  for (std::size_t i = 0; i < indexes_.size(); ++i) {
    for (std::size_t k = 0; k < indexes_[i].chunks.size(); ++k) {
      const manifest::Chunk& chunk = indexes_[i].chunks[k];
      StoredTensor& tensor = tensors_[chunk.tensor];
      if (tensor.parts.empty()) {
        tensor.dtype = chunk.dtype;
        tensor.shape = chunk.shape;
      } else if (tensor.dtype != chunk.dtype || tensor.shape != chunk.shape) {
        return Error(ErrorCode::corrupt, "two indexes give it different dtypes or shapes")
            .with_path(path_)
            .with_tensor(chunk.tensor);
      }
      tensor.parts.push_back({i, k});
    }
  }
  for (const auto& [name, tensor] : tensors_) {
    std::vector<const Box*> boxes;
    for (const StoredTensor::Part& part : tensor.parts) {
      const manifest::Chunk& chunk = indexes_[part.index].chunks[part.chunk];
      if (chunk.bytes > 0) boxes.push_back(&chunk.box);
    }
    const auto flaw = find_flaw(tensor.shape, boxes);
    if (flaw && (is_whole_ || !flaw->overlapping.empty()))
      return Error(ErrorCode::corrupt, flaw->text).with_path(path_).with_tensor(name);
  }
  return {};
}

Result<std::uint64_t> Checkpoint::check(std::span<const Target> targets) const {
  std::uint64_t bytes = 0;
  NameList missing;
  NameList different;
  for (const Target& target : targets) {
    const Piece& piece = target.piece;
    IC_TRY(const std::uint64_t of_piece, check_piece(piece));
    bytes += of_piece;
    IC_CHECK(check_strides(piece, target.strides, MemoryUse::write));
    if (target.device >= 0) IC_CHECK(check_device_strides(piece, target.strides));
    const auto found = tensors_.find(piece.tensor);
    if (found == tensors_.end()) {
      missing.add(piece.tensor);
      continue;
    }
    const StoredTensor& stored = found->second;
    if (stored.dtype != piece.dtype || stored.shape != piece.shape) {
      different.add(piece.tensor + " (saved " + std::string(safetensors::name_of(stored.dtype)) + " " +
                    shape_text(stored.shape) + ", wanted " + std::string(safetensors::name_of(piece.dtype)) + " " +
                    shape_text(piece.shape) + ")");
    }
  }
  if (!covers(targets)) {
    return Error(ErrorCode::not_found, "it was opened for what one rank saved, and more is wanted")
        .with_path(path_)
        .with_hint("Open all of it");
  }
  if (!missing.empty())
    return Error(ErrorCode::not_found, "the checkpoint has no tensor " + missing.text()).with_path(path_);
  if (!different.empty()) {
    return Error(ErrorCode::invalid_argument, "dtype or shape differ: " + different.text())
        .with_path(path_)
        .with_hint("Nothing is converted unasked: load into the saved dtype and shape");
  }
  return bytes;
}

bool Checkpoint::covers(std::span<const Target> targets) const {
  if (is_whole_) return true;
  return std::ranges::all_of(targets, [&](const Target& target) {
    const auto found = tensors_.find(target.piece.tensor);
    if (found == tensors_.end() || found->second.shape != target.piece.shape) return false;
    std::uint64_t missing = volume_of(target.piece.box.lengths);  // of elements; parts do not overlap
    for (const StoredTensor::Part& part : found->second.parts)
      missing -= common_volume(indexes_[part.index].chunks[part.chunk].box, target.piece.box);
    return missing == 0;
  });
}

Result<RestoreReport> Checkpoint::restore(std::span<const Target> targets, const RestoreOptions& options) const {
  const Clock::TimePoint begin = steady_clock().now();
  IC_TRY(const std::uint64_t bytes, check(targets));
  IC_TRY(std::vector<SegmentReads> segments, plan_reads(*this, targets, kWindowBytes));
  IC_TRY(RestoreReport report, run_reads(*this, std::move(segments), options, nullptr));
  report.bytes_wanted = bytes;
  report.index_bytes = index_bytes_;
  report.node_bytes_read = report.bytes_read;
  report.seconds = seconds_between(begin, steady_clock().now());
  return report;
}

Result<RestoreReport> Checkpoint::verify(const RestoreOptions& options) const {
  if (!is_whole_) {
    return Error(ErrorCode::invalid_argument, "it was opened for what one rank saved")
        .with_path(path_)
        .with_hint("Open all of it");
  }
  const Clock::TimePoint begin = steady_clock().now();
  IC_TRY(RestoreReport report, run_reads(*this, plan_whole_reads(*this, kWindowBytes), options, nullptr));
  report.seconds = seconds_between(begin, steady_clock().now());
  return report;
}

}  // namespace infercluster::checkpoint
