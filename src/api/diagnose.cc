// SPDX-License-Identifier: Apache-2.0
#include <sys/utsname.h>

#include <cstdlib>
#include <filesystem>

#include "api/findings.h"
#include "base/units.h"
#include "io/backend.h"
#include "load/hub_cache.h"
#include "os/limits.h"

namespace infercluster {
namespace api {
namespace {

using Level = Finding::Level;

Finding kernel() {
  struct utsname names {};
  if (::uname(&names) != 0) return {Level::note, "kernel", "unknown", "", ""};
  return {Level::good, "kernel", std::string(names.sysname) + " " + names.release + ", " + names.machine, "", ""};
}

Finding uring() {
  const Status status = io::probe_uring();
  if (status.ok()) return {Level::good, "io_uring", "available", "Files are read by io_uring.", ""};
  return {Level::warning, "io_uring", status.error().message(),
          "Files are read by a pool of threads: the same bytes, for somewhat more processor time.",
          status.error().hint()};
}

Finding locked_memory() {
  const auto limit = os::locked_memory_limit();
  const std::string state = limit ? format_bytes(*limit) : "unlimited";
  return {Level::good, "locked memory", state,
          "Loads into host memory lock none; before Linux 5.12 io_uring itself needed some.", ""};
}

Finding huge_pages() {
  const std::uint64_t reserved = os::free_explicit_huge_pages();
  const std::string explicit_state =
      reserved > 0 ? ", " + format_bytes(reserved) + " reserved and free" : ", none reserved";
  switch (os::transparent_huge_pages()) {
    case os::HugePages::always:
    case os::HugePages::on_request:
      return {Level::good, "huge pages", "transparent ones on request" + explicit_state,
              "Direct reads go to few large device segments.", ""};
    case os::HugePages::never:
      break;
  }
  return {reserved > 0 ? Level::note : Level::warning, "huge pages",
          "transparent ones are switched off" + explicit_state,
          "Memory comes in pages of 4 KiB: direct reads are split into many segments, on virtual disks at a third of "
          "the speed.",
          "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"};
}

Finding numa() {
  const unsigned nodes = os::numa_node_count();
  return {Level::good, "NUMA", std::to_string(nodes) + (nodes == 1 ? " node" : " nodes"),
          nodes > 1 ? "Run each rank on the node of its GPU and disk (numactl --cpunodebind)." : "", ""};
}

Finding processors() {
  return {Level::good, "processors", std::to_string(os::usable_processors()) + " usable by this process", "", ""};
}

Finding memory() {
  const os::MemoryLimits limits = os::memory_limits();
  std::string state = format_bytes(limits.available) + " of " + format_bytes(limits.total) + " available";
  if (!limits.cgroup_limit) return {Level::good, "memory", state, "No control group limits this process.", ""};
  state += "; the control group allows " + format_bytes(*limits.cgroup_limit) + " and uses " +
           format_bytes(limits.cgroup_used);
  return {Level::note, "memory", state,
          "At most " + format_bytes(limits.free()) +
              " of weights fit. The page cache counts against the same limit, and is filled behind a load only where "
              "it fits.",
          ""};
}

Finding hub_cache() {
  const std::string directory = load::hub_cache_directory();
  std::error_code ignored;
  if (directory.empty() || !std::filesystem::is_directory(directory, ignored)) {
    return {Level::note, "Hugging Face cache",
            directory.empty() ? "no place for it is known" : directory + " is not there",
            "Models can be named by path, not by repository id.", "Set HF_HUB_CACHE or HF_HOME to where the cache is"};
  }
  return {Level::good, "Hugging Face cache", directory,
          "Repository ids (org/name) are looked up there; nothing is fetched.", ""};
}

Finding environment() {
  const auto options = options_from_environment();
  if (!options.ok())
    return {Level::warning, "environment", options.error().message(), "Every load fails until it is put right.",
            options.error().hint()};
  std::string set;
  for (const char* name : {"BACKEND", "DIRECT", "PAGE_CACHE", "MEMORY", "VERIFY", "SEAL_DIR", "GDS", "LIBCUDA",
                           "LIBCUFILE", "LOG", "DISABLE"}) {
    const std::string variable = std::string("INFERCLUSTER_") + name;
    if (const char* value = std::getenv(variable.c_str()); value != nullptr)
      set += (set.empty() ? "" : ", ") + variable + "=" + value;
  }
  if (set.empty()) return {Level::good, "environment", "no INFERCLUSTER_ variable is set", "", ""};
  return {Level::note, "environment", set, "These change the defaults of every load.", ""};
}

}  // namespace

void add_machine_findings(std::vector<Finding>& findings) {
  for (Finding (*const find)() : {kernel, uring, locked_memory, huge_pages, numa, processors, memory}) {
    findings.push_back(find());
  }
  add_gpu_findings(findings);
  findings.push_back(hub_cache());
  findings.push_back(environment());
}

}  // namespace api

std::vector<Finding> diagnose(const std::string& path) {
  std::vector<Finding> findings;
  api::add_machine_findings(findings);
  if (!path.empty()) api::add_path_findings(path, findings);
  return findings;
}

}  // namespace infercluster
