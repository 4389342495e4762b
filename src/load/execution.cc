// SPDX-License-Identifier: Apache-2.0
#include "load/execution.h"

#include <algorithm>

#include "base/units.h"
#include "os/limits.h"

namespace infercluster::load {
namespace {

// Clearing pages is bound by memory, and a few processors saturate it.
constexpr unsigned kPrefaultThreadsMax = 8;

}  // namespace

Result<Execution> Execution::open(std::shared_ptr<const Repository> repository, const Options& options,
                                  const Environment& environment, Purpose purpose) {
  Execution execution;
  execution.environment = environment;
  execution.begin = environment.clock->now();
  IC_TRY(io::ChosenBackend chosen, environment.open_backend(options.backend));
  execution.backend = chosen.backend->name();
  execution.backend_reason = std::move(chosen.reason);
  execution.engine = std::make_unique<io::Engine>(std::move(chosen.backend), *environment.clock, io::Engine::Options{});
  IC_TRY(execution.prepared, prepare(std::move(repository), options, execution.backend, purpose));
  return execution;
}

Result<std::unique_ptr<Runner>> Execution::make_runner(RunnerHooks hooks) {
  std::optional<memory::Ring> ring;
  if (prepared.slots > 0) {
    IC_TRY(ring, memory::Ring::create(prepared.slot_bytes, prepared.slots));
  }
  const unsigned processors = std::max(1U, os::usable_processors());
  RunnerOptions options;
  options.prefault_threads = std::clamp(processors, 1U, kPrefaultThreadsMax);
  return std::make_unique<Runner>(prepared.tables(), prepared.plan, prepared.readers, std::move(engine),
                                  std::move(ring), memory::make_host_copier(), *environment.clock, environment.governor,
                                  options, std::move(hooks));
}

Status Execution::check_free_memory(std::uint64_t bytes) const {
  const os::MemoryLimits limits = os::memory_limits();
  std::uint64_t ceiling = limits.total;
  std::string what = "this machine has";
  if (limits.cgroup_limit) {
    const std::uint64_t left = *limits.cgroup_limit - std::min(*limits.cgroup_limit, limits.cgroup_used);
    if (left < ceiling) {
      ceiling = left;
      what = "this process's cgroup leaves";
    }
  }
  if (ceiling == 0 || bytes <= ceiling) return {};
  return Error(ErrorCode::out_of_memory,
               "the tensors need " + format_bytes(bytes) + " of memory, and " + what + " " + format_bytes(ceiling))
      .with_hint("Load fewer tensors or slices of them, stream them, or raise the limit");
}

Report Execution::report(const Runner& runner) const {
  Report report;
  report.bytes = prepared.plan.tensor_bytes;
  report.tensors = prepared.plan.tensors.size();
  report.seconds = seconds_between(begin, environment.clock->now());
  report.backend = backend;
  report.backend_reason = backend_reason;
  report.files = file_reports(prepared);
  report.waited = runner.waited();
  report.waited.other =
      std::max(0.0, report.seconds - report.waited.storage - report.waited.memory - report.waited.verify);
  report.moved_bytes = runner.moved_bytes();
  const io::EngineStatistics& statistics = runner.engine_statistics();
  report.bytes_read = statistics.bytes_read;
  report.requests = statistics.requests;
  report.retries = statistics.retries;
  report.notices = prepared.notices;
  if (!backend_reason.empty()) report.notices.push_back("io_uring is not used: " + backend_reason);
  return report;
}

void* empty_tensor_address() {
  alignas(4096) static std::byte nowhere[4096];
  return nowhere;
}

}  // namespace infercluster::load
