// SPDX-License-Identifier: Apache-2.0
#include "os/cgroup.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/units.h"
#include "os/file.h"
#include "os/mountinfo.h"
#include "os/text.h"

namespace infercluster::os {
namespace {

constexpr std::uint64_t kTextBytesMax = 64 * kMiB;
constexpr int kDepthMax = 64;  // parents that are looked at
// v1 writes "no limit" as the largest number of pages in bytes: 2^63 less a page or so.
constexpr std::uint64_t kUnlimited = std::uint64_t{1} << 62;

std::optional<std::string> read_text(const std::string& path) {
  auto text = read_small_file(path, kTextBytesMax);
  if (!text) return std::nullopt;
  return std::move(text).value();
}

// The number in a file that holds one; nullopt for "max", for v1's way to say so, and when there is no file.
std::optional<std::uint64_t> read_limit(const std::string& path) {
  const auto text = read_text(path);
  if (!text) return std::nullopt;
  const auto number = leading_number(*text);
  return number && *number < kUnlimited ? number : std::nullopt;
}

bool contains(const std::vector<std::string_view>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// One hierarchy in which this process has a place: its folder, and the folder of the hierarchy's mount above it.
struct Place {
  bool unified = false;  // v2
  std::string top;       // a path that can be opened
  std::string folder;    // top, or below it
};

// "/a/b" below a mount of "/a" is "/b". When the mount shows another part of the tree (a container's own group, or a
// cgroup namespace that starts elsewhere), what it shows at its root is all that there is to know.
std::string below_mount(std::string_view group, std::string_view mount_root) {
  if (mount_root == "/") return group == "/" ? "" : std::string(group);
  if (!group.starts_with(mount_root)) return "";
  group.remove_prefix(mount_root.size());
  return group.empty() || group.front() == '/' ? std::string(group) : "";
}

// The path of this process's group in the hierarchy, from lines "ID:CONTROLLERS:PATH"; v2 has "0::PATH".
std::optional<std::string> group_of(std::string_view cgroup_text, bool unified, std::string_view controller) {
  for (const std::string_view line : split(cgroup_text, '\n')) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const bool matches = unified ? controllers.empty() : contains(split(controllers, ','), controller);
    if (matches) return std::string(line.substr(second + 1));
  }
  return std::nullopt;
}

std::vector<MountLine> cgroup_mounts(const std::string& root) {
  std::vector<MountLine> mounts;
  if (const auto text = read_text(root + "/proc/self/mountinfo")) mounts = parse_mountinfo(*text);
  std::erase_if(mounts, [](const MountLine& mount) { return mount.type != "cgroup" && mount.type != "cgroup2"; });
  return mounts;
}

// Where `controller` may limit this process: in hybrid set-ups both hierarchies exist, but only one has the controller.
std::vector<Place> places_of(const std::string& root, std::string_view controller) {
  std::vector<Place> places;
  const auto cgroup_text = read_text(root + "/proc/self/cgroup");
  if (!cgroup_text) return places;
  for (const MountLine& mount : cgroup_mounts(root)) {
    const bool unified = mount.type == "cgroup2";
    if (!unified && !contains(split(mount.options, ','), controller)) continue;
    const auto group = group_of(*cgroup_text, unified, controller);
    if (!group) continue;
    Place place{.unified = unified, .top = root + mount.mount_point, .folder = {}};
    place.folder = place.top + below_mount(*group, mount.root);
    // The group's path as the host names it means nothing inside a container: its own group is then the mount's root.
    std::error_code unreadable;
    if (!std::filesystem::is_directory(place.folder, unreadable)) place.folder = place.top;
    places.push_back(std::move(place));
  }
  return places;
}

// Calls `look` with the place's folder, then with each parent up to and including the mount's own.
template <typename Look>
void walk_up(const Place& place, const Look& look) {
  std::string folder = place.folder;
  for (int depth = 0; depth < kDepthMax; ++depth) {
    look(folder);
    const std::size_t slash = folder.rfind('/');
    if (folder.size() <= place.top.size() || slash == std::string::npos || slash < place.top.size()) return;
    folder.resize(slash);
  }
}

std::optional<CgroupMemory> memory_of_folder(const std::string& folder, bool unified) {
  std::optional<std::uint64_t> limit = read_limit(folder + (unified ? "/memory.max" : "/memory.limit_in_bytes"));
  if (unified) {
    const auto high = read_limit(folder + "/memory.high");
    if (high && (!limit || *high < *limit)) limit = high;
  }
  if (!limit) return std::nullopt;
  const auto usage = read_limit(folder + (unified ? "/memory.current" : "/memory.usage_in_bytes"));
  const std::string statistics = read_text(folder + "/memory.stat").value_or("");
  const std::string_view prefix = unified ? "" : "total_";  // v1: with what is below, as the usage counts it
  std::uint64_t reclaimable = 0;
  for (const char* key : {"inactive_file", "active_file"}) {
    reclaimable += number_of_key(statistics, std::string(prefix) + key).value_or(0);
  }
  const std::uint64_t used = usage.value_or(0);
  return CgroupMemory{.limit = *limit, .used = used > reclaimable ? used - reclaimable : 0};
}

std::optional<double> quota_of_folder(const std::string& folder, bool unified) {
  std::optional<std::uint64_t> quota;
  std::optional<std::uint64_t> period;
  if (unified) {
    const std::string text =
        read_text(folder + "/cpu.max").value_or("");  // "QUOTA PERIOD" or "max PERIOD", microseconds
    quota = leading_number(text);
    if (const std::size_t blank = text.find(' '); blank != std::string::npos)
      period = leading_number(text.substr(blank));
  } else {
    quota = read_limit(folder + "/cpu.cfs_quota_us");  // -1: none, and no number to leading_number()
    period = read_limit(folder + "/cpu.cfs_period_us");
  }
  if (!quota || !period || *period == 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

}  // namespace

std::optional<CgroupMemory> cgroup_memory(const std::string& root) {
  std::optional<CgroupMemory> tightest;
  for (const Place& place : places_of(root, "memory")) {
    walk_up(place, [&](const std::string& folder) {
      const auto found = memory_of_folder(folder, place.unified);
      if (!found) return;
      const bool tighter = !tightest || found->left() < tightest->left() ||
                           (found->left() == tightest->left() && found->limit < tightest->limit);
      if (tighter) tightest = found;
    });
  }
  return tightest;
}

std::optional<double> cgroup_processors(const std::string& root) {
  std::optional<double> tightest;
  for (const Place& place : places_of(root, "cpu")) {
    walk_up(place, [&](const std::string& folder) {
      const auto found = quota_of_folder(folder, place.unified);
      if (found && (!tightest || *found < *tightest)) tightest = found;
    });
  }
  return tightest;
}

}  // namespace infercluster::os
