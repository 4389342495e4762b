// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>

#include <optional>
#include <set>

#include "api/findings.h"
#include "base/units.h"
#include "load/seal.h"
#include "os/mount.h"
#include "os/page_cache.h"
#include "pfs/layout.h"

namespace infercluster::api {
namespace {

using Level = Finding::Level;

Finding mount_finding(const Fd& fd) {
  const auto mount = os::mount_of(fd);
  const auto system = os::file_system_of(fd);
  if (!system.ok()) return {Level::warning, "file system", system.error().message(), "", ""};
  std::string state = system->name;
  if (mount.ok()) state += ", " + mount->device + " on " + mount->mount_point + " (" + mount->options + ")";
  std::string consequence = "A local file system: direct reads where it allows them.";
  if (system->network) consequence = "A network file system: large sequential reads, and never a mapping.";
  if (system->in_memory) consequence = "A file system in memory: its files are copied from there.";
  return {Level::good, "file system", state, consequence, ""};
}

Finding direct_finding(const Fd& fd) {
  const os::DirectLimits limits = os::direct_limits_of(fd);
  if (limits.supported) {
    return {Level::good, "direct I/O",
            "memory at " + std::to_string(limits.memory_alignment) + ", offset and length at " +
                std::to_string(limits.offset_alignment) + " bytes (" + limits.reason + ")",
            "Cold files are read past the page cache, straight to where the tensors will live.", ""};
  }
  return {Level::note, "direct I/O", limits.reason, "Files here are read through the page cache.",
          "Use a local ext4 or XFS file system for full speed"};
}

// How files lie on a parallel file system; nothing on others.
void add_layout_finding(const Fd& fd, std::vector<Finding>& findings) {
  const auto layout = pfs::read_layout(fd);
  if (!layout.ok()) {
    findings.push_back({Level::note, "layout", layout.error().message(), "Files here are laid out as they come.", ""});
    return;
  }
  if (layout->kind == pfs::Kind::gpfs) {
    const Status library = pfs::system_calls().gpfs_library();
    if (!library.ok()) {
      findings.push_back({Level::note, "layout", pfs::describe(*layout) + "; " + library.error().message(),
                          "Checkpoint files are written without space set aside for them.",
                          "Install Storage Scale's libgpfs, or name it in INFERCLUSTER_LIBGPFS"});
      return;
    }
  } else if (layout->kind != pfs::Kind::lustre && layout->kind != pfs::Kind::cephfs) {
    return;
  }
  findings.push_back({Level::good, "layout", pfs::describe(*layout),
                      "Checkpoint segments get a layout of their own where this file system lets us.", ""});
}

Finding residency_finding(const std::vector<load::RepositoryShard>& shards) {
  double resident = 0;
  std::uint64_t total = 0;
  std::set<std::string> methods;
  for (const load::RepositoryShard& shard : shards) {
    const os::Residency residency = os::residency_of(shard.fd, 0, shard.identity.size);
    resident += residency.fraction * static_cast<double>(shard.identity.size);
    total += shard.identity.size;
    methods.insert(residency.method);
  }
  std::string method;
  for (const std::string& name : methods) method += (method.empty() ? "" : ", ") + name;
  return {
      Level::good, "page cache",
      format_bytes(static_cast<std::uint64_t>(resident)) + " of " + format_bytes(total) + " resident (" + method + ")",
      "Files that are resident are copied from memory, and not read from the device again.", ""};
}

Finding checksum_finding(const std::vector<load::RepositoryShard>& shards, const std::string& seal_directory) {
  std::size_t sealed = 0;
  std::size_t named = 0;
  std::string damaged;
  for (const load::RepositoryShard& shard : shards) {
    const auto seal = load::find_seal(shard.path, seal_directory, shard.identity.size);
    if (seal.ok()) {
      ++sealed;
    } else if (seal.error().code() != ErrorCode::not_found) {
      damaged += (damaged.empty() ? "" : "; ") + seal.error().to_string();
    } else if (load::blob_name_of(shard.resolved_path).kind == load::BlobName::Kind::sha256) {
      ++named;
    }
  }
  if (!damaged.empty())
    return {Level::warning, "checksums", damaged, "These files are refused where checksums are asked for.",
            "Find out which is right, the file or the seal"};
  const std::string state = std::to_string(sealed) + " of " + std::to_string(shards.size()) + " files sealed, " +
                            std::to_string(named) + " more named by their SHA-256";
  if (sealed + named == shards.size())
    return {Level::good, "checksums", state, "Loads verify every byte at full speed.", ""};
  return {Level::note, "checksums", state, "Bytes of the others are loaded unverified.",
          "Seal files that you trust: infercluster seal"};
}

Fd open_any(const std::string& path) {
  return Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

}  // namespace

void add_path_findings(const std::string& path, std::vector<Finding>& findings) {
  const auto repository = open(path);
  if (!repository.ok()) {
    const Error& error = repository.error();
    findings.push_back({Level::warning, "path", (error.path().empty() ? "" : error.path() + ": ") + error.message(),
                        "It cannot be loaded.", error.hint()});
    if (const Fd fd = open_any(path); fd.valid()) {
      findings.push_back(mount_finding(fd));
      add_layout_finding(fd, findings);
    }
    return;
  }
  const auto& shards = (*repository)->shards();
  findings.push_back({Level::good, "path",
                      std::to_string((*repository)->tables().tensors.size()) + " tensors, " +
                          format_bytes((*repository)->bytes()) + " in " + std::to_string(shards.size()) +
                          (shards.size() == 1 ? " file" : " files"),
                      "", ""});
  for (const std::string& warning : (*repository)->warnings)
    findings.push_back({Level::warning, "path", warning, "", ""});
  std::set<std::uint64_t> devices;
  for (const load::RepositoryShard& shard : shards) {
    if (!devices.insert(shard.identity.device).second) continue;
    findings.push_back(mount_finding(shard.fd));
    findings.push_back(direct_finding(shard.fd));
    add_layout_finding(shard.fd, findings);
    if (const auto mount = os::mount_of(shard.fd); mount.ok()) add_gds_mount_finding(*mount, findings);
  }
  const auto options = options_from_environment();
  findings.push_back(residency_finding(shards));
  findings.push_back(checksum_finding(shards, options.ok() ? options->seal_directory : std::string()));
}

}  // namespace infercluster::api
