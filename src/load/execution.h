// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "base/result.h"
#include "io/engine.h"
#include "load/job.h"
#include "load/prepare.h"
#include "load/runner.h"

namespace infercluster::load {

// What a load and a stream do alike: open the backend, prepare, and make the runner; and, behind it, the report.
struct Execution {
  Environment environment;
  Clock::TimePoint begin;
  std::string backend;
  std::string backend_reason;
  std::unique_ptr<io::Engine> engine;  // until make_runner()
  Prepared prepared;

  static Result<Execution> open(std::shared_ptr<const Repository> repository, const Options& options,
                                const Environment& environment, Purpose purpose);
  Result<std::unique_ptr<Runner>> make_runner(RunnerHooks hooks);

  // Refuses (out_of_memory) what cannot fit in this machine or cgroup, rather than being killed half-way.
  [[nodiscard]] Status check_free_memory(std::uint64_t bytes) const;
  // All but the memory figures. `runner` has ended.
  [[nodiscard]] Report report(const Runner& runner) const;
};

// Where a tensor of zero bytes points: aligned, never null, never to be read.
void* empty_tensor_address();

}  // namespace infercluster::load
