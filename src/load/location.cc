// SPDX-License-Identifier: Apache-2.0
#include "load/location.h"

#include <algorithm>
#include <filesystem>

#include "load/hub_cache.h"

namespace infercluster::load {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
constexpr std::string_view kUsualIndex = "model.safetensors.index.json";
constexpr std::string_view kShardSuffix = ".safetensors";
constexpr std::size_t kEntriesMax = 1'000'000;  // of one folder

struct Listing {
  std::vector<std::string> indexes;
  std::vector<std::string> shards;
  std::vector<std::string> other_weights;  // formats that are not ours
};

Result<Listing> list(const std::string& directory) {
  static constexpr std::string_view kOtherWeights[] = {".bin",  ".pt", ".pth",     ".ckpt",
                                                       ".gguf", ".h5", ".msgpack", ".onnx"};
  Listing listing;
  std::error_code failed;
  std::size_t count = 0;
  fs::directory_iterator it(directory, failed);
  for (const fs::directory_iterator end; !failed && it != end; it.increment(failed)) {
    if (++count > kEntriesMax) {
      return Error(ErrorCode::too_large, "the folder has over " + std::to_string(kEntriesMax) + " entries")
          .with_path(directory);
    }
    std::string name = it->path().filename().string();
    if (name.ends_with(kIndexSuffix)) {
      listing.indexes.push_back(std::move(name));
    } else if (name.ends_with(kShardSuffix)) {
      listing.shards.push_back(std::move(name));
    } else if (std::any_of(std::begin(kOtherWeights), std::end(kOtherWeights),
                           [&](auto suffix) { return name.ends_with(suffix); })) {
      listing.other_weights.push_back(std::move(name));
    }
  }
  if (failed) return Error::from_errno(failed.value(), "cannot list the folder").with_path(directory);
  std::sort(listing.indexes.begin(), listing.indexes.end());
  std::sort(listing.shards.begin(), listing.shards.end());
  std::sort(listing.other_weights.begin(), listing.other_weights.end());
  return listing;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) text += (i > 0 ? ", " : "") + names[i];
  return text;
}

Result<std::string> canonical(const std::string& path) {
  std::error_code failed;
  const fs::path resolved = fs::canonical(path, failed);
  if (failed) return Error::from_errno(failed.value(), "cannot resolve the path").with_path(path);
  return resolved.string();
}

Error no_weights(const Location& location, const Listing& listing) {
  Error error = Error(ErrorCode::not_found, "the folder has no .safetensors file").with_path(location.path);
  if (listing.other_weights.empty()) return std::move(error).with_hint(fetch_hint(location));
  return std::move(error).with_hint("It has weights of another format (" + listing.other_weights.front() +
                                    "): convert them to safetensors");
}

// `index_name` is set when the user named the index itself.
Result<Location> locate_folder(Location location, const std::string& revision) {
  IC_TRY(location.link_root, canonical(location.path));
  const SnapshotPlace place = snapshot_place_of(location.link_root);
  if (!place.hub_repository.empty()) {
    location.link_root = place.hub_repository;
    location.hub_repository = place.hub_repository;
    location.commit = place.commit;
  }
  if (!revision.empty() && revision != location.commit) {
    return Error(ErrorCode::invalid_argument, "revision \"" + revision + "\" was asked for, but this is a folder" +
                                                  (location.commit.empty() ? "" : " of revision " + location.commit))
        .with_path(location.path)
        .with_hint(
            "A revision chooses within a repository of the Hugging Face cache: give its id, or its models--ORG--NAME "
            "folder");
  }
  if (location.index_name) return location;
  IC_TRY(Listing listing, list(location.path));
  const bool usual = std::find(listing.indexes.begin(), listing.indexes.end(), kUsualIndex) != listing.indexes.end();
  if (!usual && listing.indexes.size() > 1) {
    return Error(ErrorCode::invalid_argument, "the folder has several indexes: " + joined(listing.indexes))
        .with_path(location.path)
        .with_hint("Give the path of the index that is meant");
  }
  if (!listing.indexes.empty()) {
    location.index_name = usual ? std::string(kUsualIndex) : listing.indexes.front();
    return location;
  }
  if (listing.shards.empty()) return no_weights(location, listing);
  location.shard_names = std::move(listing.shards);
  return location;
}

Result<Location> locate_snapshot(const std::string& hub_repository, const std::string& revision) {
  IC_TRY(Snapshot snapshot, find_snapshot(hub_repository, revision));
  Location location;
  location.path = snapshot.path;
  IC_TRY(location, locate_folder(std::move(location), ""));
  location.commit = snapshot.commit;
  return location;
}

Result<Location> locate_file(const std::string& source, const std::string& revision) {
  if (!revision.empty()) {
    return Error(ErrorCode::invalid_argument, "revision \"" + revision + "\" was asked for, but this is a file")
        .with_path(source);
  }
  Location location;
  if (source.ends_with(kIndexSuffix)) {
    const fs::path path(source);
    location.path = path.has_parent_path() ? path.parent_path().string() : ".";
    location.index_name = path.filename().string();
    return locate_folder(std::move(location), "");
  }
  location.path = source;
  IC_TRY(location.file, canonical(source));
  return location;
}

bool looks_like_a_path(const std::string& source) {
  return source.starts_with('/') || source.starts_with('.') || source.starts_with('~') || source.ends_with('/') ||
         source.ends_with(kShardSuffix) || source.ends_with(kIndexSuffix);
}

Result<Location> locate_absent(const std::string& source, const LocateOptions& options) {
  std::error_code failed;
  if (fs::is_symlink(source, failed)) {
    const std::string target = fs::read_symlink(source, failed).string();
    return Error(ErrorCode::not_found, "the link leads to " + target + ", which is missing")
        .with_path(source)
        .with_hint("In a Hugging Face cache this is a blob that was not fetched: " + fetch_command("", ""));
  }
  if (looks_like_a_path(source) || !is_repository_id(source)) {
    return Error(ErrorCode::not_found, "no such file or folder")
        .with_path(source)
        .with_hint("A repository of the Hugging Face cache is named by its id, as in ORG/NAME");
  }
  IC_TRY(const std::string repository, find_hub_repository(source, options.hub));
  return locate_snapshot(repository, options.revision);
}

}  // namespace

std::string fetch_hint(const Location& location) {
  if (location.hub_repository.empty()) {
    return "The download or copy was not finished, or the index is of another version: fetch the repository again, for "
           "example with " +
           fetch_command("", "") + " and --local-dir, or `git lfs pull`";
  }
  return "The download was not finished: run " +
         fetch_command(repository_id_of(location.hub_repository), location.commit) + " again";
}

Result<Location> locate(const std::string& source, const LocateOptions& options) {
  if (source.empty()) return Error(ErrorCode::invalid_argument, "no source was given");
  if (source.find('\0') != std::string::npos)
    return Error(ErrorCode::invalid_argument, "the source's name has a NUL in it");
  std::error_code failed;
  const fs::file_status status = fs::status(source, failed);
  Location folder;
  folder.path = source;
  switch (status.type()) {
    case fs::file_type::regular:
      return locate_file(source, options.revision);
    case fs::file_type::directory:
      if (is_hub_repository(source)) return locate_snapshot(source, options.revision);
      return locate_folder(std::move(folder), options.revision);
    case fs::file_type::not_found:
      return locate_absent(source, options);
    case fs::file_type::none:
      return Error::from_errno(failed.value(), "cannot look at it").with_path(source);
    default:
      return Error(ErrorCode::invalid_argument, "neither a file nor a folder").with_path(source);
  }
}

}  // namespace infercluster::load
