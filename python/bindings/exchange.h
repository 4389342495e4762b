// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "exchange/exchange.h"

namespace infercluster::python {

// The ranks of a job, as Python holds them.
struct Ranks {
  std::shared_ptr<exchange::Exchange> exchange;
};

}  // namespace infercluster::python
