// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cli/common.h"
#include "load/report.h"

namespace infercluster::cli {

nlohmann::ordered_json to_json(const load::Report& report);

// For a person; files that were read alike are counted together.
std::string to_text(const load::Report& report);

}  // namespace infercluster::cli
