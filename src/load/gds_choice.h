// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "base/result.h"
#include "load/gds.h"
#include "load/job.h"
#include "load/prepare.h"

namespace infercluster::load {

struct GdsSituation {
  const Options& options;
  const Environment& environment;
  Target& target;  // of a device
};

// Decides which files of a load are read by GPUDirect Storage, and opens it for them; null: none is. Says why in each
// reader. Errors: those of Gds::always where it cannot be had, or where verification was demanded too.
Result<std::unique_ptr<GdsReader>> choose_gds(const GdsSituation& situation, Prepared& prepared);

}  // namespace infercluster::load
