// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "infercluster/infercluster.h"
#include "os/mount.h"

namespace infercluster::api {

// About this machine and this process: kernel, io_uring, memory, huge pages, NUMA, GPUs, environment.
void add_machine_findings(std::vector<Finding>& findings);

// The GPUs, and what GPUDirect Storage needs of the machine. One finding where there is no driver. Makes no context.
void add_gpu_findings(std::vector<Finding>& findings);
// Whether GPUDirect Storage reads from this mount; nothing where there is no driver.
void add_gds_mount_finding(const os::Mount& mount, std::vector<Finding>& findings);

// About the mount of `path`, what it can do, and what of the model there is in the page cache and sealed.
void add_path_findings(const std::string& path, std::vector<Finding>& findings);

}  // namespace infercluster::api
