// SPDX-License-Identifier: Apache-2.0
// What GPUs there are, and what decides whether GPUDirect Storage can serve them, each fact with its consequence. For
// `infercluster doctor`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace infercluster::gpu {

struct GdsFinding {
  enum class Level : std::uint8_t { good, note, warning };
  Level level = Level::good;
  std::string subject;      // "nvidia-fs", "BAR1", ...
  std::string state;        // what was found
  std::string consequence;  // what it means for loads to a GPU
  std::string remedy;       // what to do; empty when nothing is to be done
};

// Looks at the driver, each GPU and its BAR1, cuFile's library, the kernel module and the configuration. Without a
// driver there is one finding, which says so. Makes no context, and does not open cuFile's driver.
std::vector<GdsFinding> gds_findings();

// The parts that read files. `root` ends in a slash, and is "/" outside of tests.
GdsFinding nvidia_fs_finding(const std::string& root);
GdsFinding bar1_finding(const std::string& pci_bus_id, const std::string& root);
// A mount's file system, as os::mount_of() tells it.
GdsFinding file_system_finding(std::string_view type, std::string_view mount_options);
// The configuration that cuFile would read: CUFILE_ENV_PATH_JSON, else /etc/cufile.json below `root`.
GdsFinding compatibility_finding(const std::string& root);

}  // namespace infercluster::gpu
