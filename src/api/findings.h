// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "infercluster/infercluster.h"

namespace infercluster::api {

// About this machine and this process: kernel, io_uring, memory, huge pages, NUMA, GPU, environment.
void add_machine_findings(std::vector<Finding>& findings);

// About the mount of `path`, what it can do, and what of the model there is in the page cache and sealed.
void add_path_findings(const std::string& path, std::vector<Finding>& findings);

}  // namespace infercluster::api
