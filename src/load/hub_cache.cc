// SPDX-License-Identifier: Apache-2.0
#include "load/hub_cache.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "os/file.h"

namespace infercluster::load {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModelPrefix = "models--";
constexpr std::uint64_t kRefBytesMax = 4096;
constexpr std::size_t kNamesListedMax = 20;

bool is_folder(const fs::path& path) {
  std::error_code failed;  // what cannot be looked at is none
  return fs::is_directory(path, failed);
}

bool is_id_part(std::string_view part) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  };
  return !part.empty() && part.size() <= 96 && part.front() != '.' && part.front() != '-' &&
         std::all_of(part.begin(), part.end(), allowed) && part.find("--") == std::string_view::npos &&
         part.find("..") == std::string_view::npos;
}

// Neither absolute nor with a component that leads elsewhere.
bool is_revision_name(const std::string& revision) {
  const fs::path path(revision);
  return !revision.empty() && revision.find('\0') == std::string::npos && path.is_relative() &&
         std::none_of(path.begin(), path.end(),
                      [](const fs::path& part) { return part == ".." || part == "." || part.empty(); });
}

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code failed;  // a folder that cannot be listed shows nothing
  for (fs::directory_iterator it(directory, failed), end; !failed && it != end; it.increment(failed)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string listed(const std::vector<std::string>& names) {
  if (names.empty()) return "none";
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kNamesListedMax; ++i) text += (i > 0 ? ", " : "") + names[i];
  if (names.size() > kNamesListedMax) text += ", and " + std::to_string(names.size() - kNamesListedMax) + " more";
  return text;
}

Error no_snapshot(const std::string& hub_repository, const std::string& revision, const std::string& why) {
  return Error(ErrorCode::not_found, "the cache has no snapshot of revision \"" + revision + "\": " + why +
                                         " (refs: " + listed(names_in(fs::path(hub_repository) / "refs")) +
                                         "; snapshots: " + listed(names_in(fs::path(hub_repository) / "snapshots")) +
                                         ")")
      .with_path(hub_repository)
      .with_hint("Fetch it: " + fetch_command(repository_id_of(hub_repository), revision));
}

std::string trimmed(std::string text) {
  const auto end = text.find_last_not_of(" \t\r\n");
  text.resize(end == std::string::npos ? 0 : end + 1);
  return text;
}

}  // namespace

std::string hub_cache_directory(const std::function<const char*(const char*)>& get) {
  struct Place {
    const char* variable;
    const char* below;
  };
  for (const Place& place : {Place{"HF_HUB_CACHE", ""}, Place{"HUGGINGFACE_HUB_CACHE", ""}, Place{"HF_HOME", "/hub"},
                             Place{"XDG_CACHE_HOME", "/huggingface/hub"}, Place{"HOME", "/.cache/huggingface/hub"}}) {
    const char* value = get(place.variable);
    if (value == nullptr || *value == '\0') continue;
    std::string path = value;
    const char* home = get("HOME");
    if (home != nullptr && (path == "~" || path.starts_with("~/"))) path.replace(0, 1, home);
    return path + place.below;
  }
  return "";
}

std::string hub_cache_directory() {
  return hub_cache_directory([](const char* name) -> const char* { return std::getenv(name); });
}

bool is_repository_id(std::string_view text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) return is_id_part(text);
  return is_id_part(text.substr(0, slash)) && is_id_part(text.substr(slash + 1));
}

bool is_hub_repository(const std::string& directory) {
  const fs::path path(directory);
  return is_folder(path / "snapshots") && (is_folder(path / "refs") || is_folder(path / "blobs"));
}

std::string repository_id_of(std::string_view hub_repository) {
  std::string name = fs::path(hub_repository).filename().string();
  if (!name.starts_with(kModelPrefix)) return "";
  name.erase(0, kModelPrefix.size());
  if (const std::size_t separator = name.find("--"); separator != std::string::npos) name.replace(separator, 2, "/");
  return name;
}

Result<std::string> find_hub_repository(const std::string& id, const std::string& hub) {
  std::string folder = std::string(kModelPrefix) + id;
  if (const std::size_t slash = folder.find('/'); slash != std::string::npos) folder.replace(slash, 1, "--");
  const std::string path = (fs::path(hub) / folder).string();
  if (!hub.empty() && is_folder(path)) return path;
  const std::string where = hub.empty() ? "there is no Hugging Face cache"
                                        : "the Hugging Face cache " + hub + " has no repository of that name";
  return Error(ErrorCode::not_found, "no such file or folder, and " + where)
      .with_path(id)
      .with_hint("Fetch it: " + fetch_command(id, "") + ", or set HF_HUB_CACHE or HF_HOME to the cache that has it");
}

Result<Snapshot> find_snapshot(const std::string& hub_repository, const std::string& revision) {
  const std::string wanted = revision.empty() ? "main" : revision;
  if (!is_revision_name(wanted)) {
    return Error(ErrorCode::invalid_argument, "\"" + wanted + "\" is not the name of a revision")
        .with_path(hub_repository);
  }
  const fs::path repository(hub_repository);
  std::string commit = wanted;
  std::string why = "neither a ref nor a snapshot has that name";
  std::error_code failed;
  const fs::path ref = repository / "refs" / wanted;
  if (fs::is_regular_file(ref, failed)) {
    IC_TRY(std::string content, os::read_small_file(ref.string(), kRefBytesMax));
    commit = trimmed(std::move(content));
    if (commit.find('/') != std::string::npos || !is_revision_name(commit)) {
      return Error(ErrorCode::corrupt, "the ref does not hold the name of a commit").with_path(ref.string());
    }
    why = "its ref names commit " + commit + ", which was not fetched";
  }
  const fs::path snapshot = repository / "snapshots" / commit;
  if (commit.find('/') == std::string::npos && is_folder(snapshot)) return Snapshot{snapshot.string(), commit};
  return no_snapshot(hub_repository, wanted, why);
}

SnapshotPlace snapshot_place_of(const std::string& canonical_path) {
  fs::path commit(canonical_path);
  while (commit.has_relative_path()) {
    const fs::path snapshots = commit.parent_path();
    if (snapshots.filename() == "snapshots" && is_hub_repository(snapshots.parent_path().string())) {
      return {snapshots.parent_path().string(), commit.filename().string()};
    }
    commit = snapshots;
  }
  return {};
}

std::string fetch_command(std::string_view repository_id, std::string_view revision) {
  std::string command =
      "`hf download " + (repository_id.empty() ? std::string("ORG/NAME") : std::string(repository_id));
  if (!revision.empty() && revision != "main") command += " --revision " + std::string(revision);
  return command + "` (older: huggingface-cli download)";
}

}  // namespace infercluster::load
