// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "base/result.h"
#include "io/engine.h"
#include "load/gds.h"
#include "load/job.h"
#include "load/prepare.h"
#include "load/runner.h"
#include "load/target.h"

namespace infercluster::load {

// What a load and a stream do alike: open the backend, prepare, and make the runner; and, behind it, the report.
struct Execution {
  Environment environment;
  Clock::TimePoint begin;
  std::string backend;
  std::string backend_reason;
  std::shared_ptr<Target> target;
  std::unique_ptr<io::Engine> engine;           // until make_runner()
  std::unique_ptr<io::ForegroundLatency> told;  // until make_runner(); null: there is no target, or no way to tell
  std::unique_ptr<GdsReader> gds;               // before `prepared`, whose readers read by it
  Prepared prepared;

  static Result<Execution> open(std::shared_ptr<const Repository> repository, const Options& options,
                                const Environment& environment, Purpose purpose);
  Result<std::unique_ptr<Runner>> make_runner(RunnerHooks hooks);

  // All but the memory figures. `runner` has ended.
  [[nodiscard]] Report report(const Runner& runner) const;
};

// Tensor `index` of the plan in its unit's memory, without an owner.
LoadedTensor loaded_tensor(const Prepared& prepared, std::size_t index, const memory::Block& block);

}  // namespace infercluster::load
