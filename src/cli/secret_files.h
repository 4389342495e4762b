// SPDX-License-Identifier: Apache-2.0
// The secrets of DH-HMAC-CHAP, from files: a command line is seen by every process of the machine.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "nvme/auth_secret.h"
#include "target/controllers.h"

namespace infercluster::cli {

// Of one file, which nobody but its owner and group may read. Errors: permission (others may, or the group may write);
// invalid_argument (no secret); those of reading.
Result<nvme::Secret> read_secret(const std::string& path);

// What a host proves itself with, and its target to it; empty paths: nothing.
Result<std::optional<nvme::Credentials>> read_credentials(const std::string& host_path,
                                                          const std::string& controller_path);

// Of a target, each "FILE" (for every host) or "HOSTNQN=FILE". Errors: those of read_secret; invalid_argument (one host
// twice, a controller's secret for a host without one).
struct SecretFiles {
  std::vector<std::string> hosts;
  std::vector<std::string> controllers;
};
Status add_secrets(const SecretFiles& files, target::Admission& admission);

}  // namespace infercluster::cli
