// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/export_place.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/log.h"
#include "checkpoint/directory.h"

namespace infercluster::checkpoint {
namespace {

bool is_weights(const std::string& name) {
  return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
}

}  // namespace

Result<ExportPlace> ExportPlace::open(io::FileCalls& calls, const std::string& destination, OtherFiles other_files) {
  ExportPlace place(calls);
  std::error_code failed;
  std::filesystem::path path = std::filesystem::weakly_canonical(destination, failed);
  if (failed || destination.empty())
    return Error(ErrorCode::invalid_argument, "this is no place to write to").with_path(destination);
  if (path.filename().empty()) path = path.parent_path();  // "dest/"
  place.destination_ = path.string();
  place.name_ = path.filename().string();
  place.id_ = random_id();
  auto existing = calls.open_directory(place.destination_);
  if (existing.ok()) {
    place.directory_ = std::move(existing).value();
    IC_CHECK(place.open_existing(other_files));
  } else if (existing.error().system_errno() == ENOENT) {
    IC_CHECK(place.make_beside());
  } else {
    return std::move(existing).error();
  }
  return place;
}

ExportPlace::ExportPlace(ExportPlace&& other) noexcept
    : calls_(other.calls_),
      destination_(std::move(other.destination_)),
      name_(std::move(other.name_)),
      id_(std::move(other.id_)),
      parent_(std::move(other.parent_)),
      directory_(std::move(other.directory_)),
      beside_(other.beside_),
      open_(std::exchange(other.open_, false)),
      files_(std::move(other.files_)),
      published_(other.published_) {}

Status ExportPlace::open_existing(OtherFiles other_files) {
  IC_TRY(std::vector<io::Entry> entries, calls_->list(directory_));
  std::sort(entries.begin(), entries.end(), [](const io::Entry& a, const io::Entry& b) { return a.name < b.name; });
  for (const io::Entry& entry : entries) {
    if (is_weights(entry.name)) {
      return Error(ErrorCode::invalid_argument, "it holds weights already (" + entry.name + "), which are not replaced")
          .with_path(destination_)
          .with_hint("Remove them, or name a directory that is not there yet");
    }
    if (other_files == OtherFiles::refuse) {
      return Error(ErrorCode::invalid_argument, "it is not empty (" + entry.name + ")")
          .with_path(destination_)
          .with_hint("Name a directory that is not there yet, or allow other files beside the weights with --merge");
    }
  }
  open_ = true;
  return {};
}

Status ExportPlace::make_beside() {
  auto parent = calls_->open_directory(std::filesystem::path(destination_).parent_path().string());
  if (!parent.ok()) return std::move(parent).error().with_hint("Only the last folder of the destination is made");
  parent_ = std::move(parent).value();
  IC_CHECK(calls_->make_directory(parent_, temporary(name_)));
  beside_ = true;
  open_ = true;
  IC_TRY(directory_, calls_->open_directory_in(parent_, temporary(name_)));
  return {};
}

std::string ExportPlace::temporary(const std::string& name) const {
  return "." + name + "." + id_ + ".tmp";
}

Result<io::OutputFile> ExportPlace::create(const std::string& name) {
  IC_TRY(io::OutputFile file, calls_->create(directory_, beside_ ? name : temporary(name)));
  files_.push_back(name);
  return file;
}

Status ExportPlace::publish() {
  IC_CHECK(calls_->sync_directory(directory_));
  if (beside_) {
    IC_CHECK(calls_->rename(parent_, temporary(name_), name_));
    open_ = false;
    return calls_->sync_directory(parent_);
  }
  for (const std::string& name : files_) {
    // The last one says that the others are there.
    if (published_ > 0 && published_ + 1 == files_.size()) IC_CHECK(calls_->sync_directory(directory_));
    if (calls_->size_of(directory_, name).ok()) {
      return Error(ErrorCode::changed, "somebody else has made it meanwhile").with_path(path_of(name));
    }
    IC_CHECK(calls_->rename(directory_, temporary(name), name));
    ++published_;
  }
  open_ = false;
  return calls_->sync_directory(directory_);
}

ExportPlace::~ExportPlace() {
  if (!open_) return;
  for (std::size_t i = 0; i < files_.size(); ++i) remove(beside_ || i < published_ ? files_[i] : temporary(files_[i]));
  if (!beside_) return;
  const Status removed = calls_->remove_directory(parent_, temporary(name_));
  if (!removed.ok()) log_warning("cannot tidy up: " + removed.error().to_string());
}

void ExportPlace::remove(const std::string& name) {
  const Status removed = calls_->remove(directory_, name);
  if (!removed.ok()) log_warning("cannot tidy up: " + removed.error().to_string());
}

}  // namespace infercluster::checkpoint
