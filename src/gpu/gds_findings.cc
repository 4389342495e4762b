// SPDX-License-Identifier: Apache-2.0
#include "gpu/gds_findings.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <initializer_list>
#include <optional>

#include "base/units.h"
#include "gpu/cufile.h"
#include "gpu/device.h"
#include "gpu/driver.h"
#include "os/file.h"
#include "os/text.h"

namespace infercluster::gpu {
namespace {

using Level = GdsFinding::Level;
using Version = std::array<std::uint64_t, 3>;

// Older ones write past GPU buffers of 4 GiB and more in RDMA transfers.
constexpr Version kNvidiaFsSafe = {2, 28, 4};
// Files of /proc and configurations are a few KiB.
constexpr std::uint64_t kTextMax = 1u << 20;
// Below this, even small rings of a few processes run out of BAR1.
constexpr std::uint64_t kBar1Small = 1u << 30;

// The first "N.N" or "N.N.N" in the text.
std::optional<Version> version_in(std::string_view text) {
  const std::size_t start = text.find_first_of("0123456789");
  if (start == std::string_view::npos) return std::nullopt;
  text = text.substr(start, text.find_first_not_of("0123456789.", start) - start);
  Version version{};
  std::size_t at = 0;
  for (const std::string_view part : os::split(text, '.')) {
    if (at == version.size()) break;
    const auto number = os::leading_number(part);
    if (!number) return std::nullopt;
    version.at(at++) = *number;
  }
  return at >= 2 ? std::optional(version) : std::nullopt;
}

GdsFinding driver_finding(const Result<const Driver*>& found) {
  if (!found.ok()) {
    return {Level::note, "NVIDIA driver", found.error().message(),
            "Weights are loaded into host memory; loads to a GPU are refused.", found.error().hint()};
  }
  const auto count = device_count();
  std::string state = "CUDA " + cuda_version_text((*found)->version());
  state +=
      count.ok() ? ", " + std::to_string(*count) + (*count == 1 ? " GPU" : " GPUs") : ", " + count.error().message();
  return {count.ok() ? Level::good : Level::warning, "NVIDIA driver", state,
          "Loads to a GPU go through pinned host memory, and past it where GPUDirect Storage works.", ""};
}

GdsFinding library_finding() {
  const Status found = cufile_found();
  if (!found.ok()) {
    return {Level::note, "cuFile", found.error().message(),
            "No GPUDirect Storage: loads to a GPU go through pinned host memory.", found.error().hint()};
  }
  const std::string version = cufile_version_text();
  return {Level::good, "cuFile", version.empty() ? "a version that does not say which" : "version " + version,
          "A load asks it how it moves bytes, and measures before it relies on it.", ""};
}

// The GPU and its BAR1. Device::open() would make a context.
void add_device_findings(const Driver& driver, int ordinal, std::vector<GdsFinding>& findings) {
  const std::string subject = "GPU " + std::to_string(ordinal);
  const CudaApi& api = driver.api();
  CuDevice device = 0;
  std::array<char, 256> name{};
  std::size_t bytes = 0;
  CuResult result = api.cuDeviceGet(&device, ordinal);
  if (result == CuResult::success) result = api.cuDeviceGetName(name.data(), static_cast<int>(name.size()) - 1, device);
  if (result == CuResult::success) result = api.cuDeviceTotalMem_v2(&bytes, device);
  const auto id = result == CuResult::success
                      ? pci_bus_id_of(driver, device)
                      : Result<std::string>(driver.error(result, "cuDeviceGet", "look at " + subject));
  if (!id.ok()) {
    findings.push_back(
        {Level::warning, subject, id.error().message(), "Loads to it may be refused.", id.error().hint()});
    return;
  }
  const auto node = numa_node_of_pci_device(*id, "/");
  findings.push_back({Level::good, subject,
                      std::string(name.data()) + ", " + format_bytes(bytes) + ", " + *id + ", " +
                          (node ? "NUMA node " + std::to_string(*node) : "NUMA node not known"),
                      node ? "The pinned ring of a load to it lies on that node."
                           : "The pinned ring of a load to it lies where the kernel puts it.",
                      ""});
  findings.push_back(bar1_finding(*id, "/"));
}

// JSON with the // comments that cufile.json has: is `"key": true` or `"key": false` in it?
std::optional<bool> flag_in(std::string_view text, std::string_view key) {
  for (std::string_view line : os::split(text, '\n')) {
    line = line.substr(0, line.find("//"));
    const std::size_t at = line.find(key);
    if (at == std::string_view::npos) continue;
    const std::string_view value = line.substr(at + key.size());
    const std::size_t first = value.find_first_not_of(" \t:");
    if (first == std::string_view::npos || value.find(':') > first) continue;
    if (value.substr(first).starts_with("true")) return true;
    if (value.substr(first).starts_with("false")) return false;
  }
  return std::nullopt;
}

}  // namespace

GdsFinding nvidia_fs_finding(const std::string& root) {
  auto text = os::read_small_file(root + "proc/driver/nvidia-fs/version", kTextMax);
  if (!text.ok()) text = os::read_small_file(root + "sys/module/nvidia_fs/version", kTextMax);
  if (!text.ok()) {
    return {
        Level::note, "nvidia-fs", "the kernel module is not loaded",
        "cuFile reads directly only where it can use PCI peer-to-peer DMA (CUDA 12.8 and newer); else it is not used.",
        "modprobe nvidia-fs, where the package nvidia-gds is installed"};
  }
  const auto version = version_in(*text);
  if (!version) {
    return {Level::note, "nvidia-fs", "loaded, of a version that it does not say",
            "cuFile can read directly on file systems that it supports.", ""};
  }
  const std::string state = "version " + std::to_string((*version)[0]) + "." + std::to_string((*version)[1]) + "." +
                            std::to_string((*version)[2]);
  if (*version < kNvidiaFsSafe) {
    return {Level::warning, "nvidia-fs", state,
            "Before 2.28.4 RDMA transfers are corrupted for GPU buffers of 4 GiB and more.",
            "Update nvidia-fs to 2.28.4 or newer"};
  }
  return {Level::good, "nvidia-fs", state, "cuFile can read directly on file systems that it supports.", ""};
}

GdsFinding bar1_finding(const std::string& pci_bus_id, const std::string& root) {
  struct stat entry {};
  const std::string path = root + "sys/bus/pci/devices/" + pci_bus_id + "/resource1";
  if (::stat(path.c_str(), &entry) != 0) {
    return {Level::note, "BAR1", "not known: " + path + " is not there",
            "Direct transfers land in this window of GPU memory; in virtual machines it may be missing.", ""};
  }
  const auto bytes = static_cast<std::uint64_t>(entry.st_size);
  const std::string state = format_bytes(bytes) + " on " + pci_bus_id;
  if (bytes < kBar1Small) {
    return {Level::warning, "BAR1", state, "Few buffers can be pinned for direct transfers; others are refused (5016).",
            "Enable above-4G decoding and resizable BARs in the firmware"};
  }
  return {Level::good, "BAR1", state, "The window of GPU memory that direct transfers land in.", ""};
}

GdsFinding file_system_finding(std::string_view type, std::string_view mount_options) {
  const std::string state = std::string(type) + " (" + std::string(mount_options) + ")";
  const auto is_any = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), type) != names.end();
  };
  if (type == "xfs") return {Level::good, "GDS file system", state, "cuFile reads it directly.", ""};
  if (type == "ext4") {
    const auto options = os::split(mount_options, ',');
    if (std::find(options.begin(), options.end(), "data=ordered") != options.end()) {
      return {Level::good, "GDS file system", state, "cuFile reads it directly.", ""};
    }
    return {Level::warning, "GDS file system", state,
            "cuFile looks for data=ordered among the mount's options, and does not read it directly without.",
            "Mount it with -o data=ordered: it is the default, but only then shown"};
  }
  if (is_any({"lustre", "gpfs", "nfs", "nfs4", "beegfs", "wekafs"})) {
    return {Level::note, "GDS file system", state,
            "cuFile reads it directly where its client supports GPUDirect over RDMA.", ""};
  }
  return {Level::warning, "GDS file system", state,
          "cuFile does not read it directly: loads to a GPU go through pinned host memory.",
          "Keep models on XFS, or on ext4 mounted with data=ordered"};
}

GdsFinding compatibility_finding(const std::string& root) {
  const char* const named = std::getenv("CUFILE_ENV_PATH_JSON");  // NOLINT(concurrency-mt-unsafe): read only
  const std::string path = named != nullptr ? named : root + "etc/cufile.json";
  const char* const forced = std::getenv("CUFILE_FORCE_COMPAT_MODE");  // NOLINT(concurrency-mt-unsafe): read only
  const auto text = os::read_small_file(path, kTextMax);
  const std::string where = text.ok() ? " in " + path : ": " + path + " cannot be read, so the defaults hold";
  const bool force = text.ok() && flag_in(*text, "\"force_compat_mode\"").value_or(false);
  if (force || (forced != nullptr && std::string_view(forced) == "true")) {
    return {Level::warning, "GDS compatibility mode", force ? "forced" + where : "forced by CUFILE_FORCE_COMPAT_MODE",
            "cuFile reads into host memory and copies: that counts as no GPUDirect Storage.",
            "Set force_compat_mode to false, or unset CUFILE_FORCE_COMPAT_MODE"};
  }
  const bool allowed = !text.ok() || flag_in(*text, "\"allow_compat_mode\"").value_or(true);
  if (allowed) {
    return {Level::note, "GDS compatibility mode", "allowed" + where,
            "cuFile falls back to reads into host memory without a word; loads ask for its mode and measure it.",
            "Set allow_compat_mode to false in cufile.json to make it refuse instead"};
  }
  return {Level::good, "GDS compatibility mode", "refused" + where,
          "What cuFile cannot read directly it refuses; loads go through pinned host memory then.", ""};
}

std::vector<GdsFinding> gds_findings() {
  const auto found = driver();
  std::vector<GdsFinding> findings = {driver_finding(found)};
  if (!found.ok()) return findings;
  const auto counted = device_count();
  const int count = counted.ok() ? *counted : 0;
  for (int ordinal = 0; ordinal < count; ++ordinal) add_device_findings(**found, ordinal, findings);
  findings.push_back(library_finding());
  findings.push_back(nvidia_fs_finding("/"));
  findings.push_back(compatibility_finding("/"));
  return findings;
}

}  // namespace infercluster::gpu
