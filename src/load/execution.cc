// SPDX-License-Identifier: Apache-2.0
#include "load/execution.h"

#include <algorithm>

#include "base/units.h"
#include "load/gds_choice.h"
#include "os/limits.h"

namespace infercluster::load {
namespace {

// Clearing pages is bound by memory, and a few processors saturate it.
constexpr unsigned kPrefaultThreadsMax = 8;

}  // namespace

Result<Execution> Execution::open(std::shared_ptr<const Repository> repository, const Options& options,
                                  const Environment& environment, Purpose purpose) {
  Execution execution;
  std::string notice;
  execution.environment = environment;
  execution.begin = environment.clock->now();
  IC_TRY(execution.target, open_target(options));
  IC_TRY(io::ChosenBackend chosen, environment.open_backend(options.backend));
  execution.backend = chosen.backend->name();
  execution.backend_reason = std::move(chosen.reason);
  execution.engine = std::make_unique<io::Engine>(std::move(chosen.backend), *environment.clock, io::Engine::Options{});
  if (options.latency_target.count() > 0) {
    auto told = io::ForegroundLatency::open(io::latency_folder(), options.latency_target);
    if (told.ok())
      execution.told = std::move(told).value();
    else
      notice = "checkpoints do not give way to it: " + told.error().to_string();
  }
  IC_TRY(execution.prepared, prepare(std::move(repository), options, execution.backend, purpose, *execution.target));
  if (!notice.empty()) execution.prepared.notices.push_back(std::move(notice));
  if (execution.target->gpu() != nullptr) {
    const GdsSituation situation{options, environment, *execution.target};
    IC_TRY(execution.gds, choose_gds(situation, execution.prepared));
  }
  return execution;
}

Result<std::unique_ptr<Runner>> Execution::make_runner(RunnerHooks hooks) {
  Machinery machinery{std::move(engine), std::nullopt, std::nullopt, target, nullptr, std::move(told)};
  if (prepared.slots > 0) {
    IC_TRY(machinery.ring, target->make_ring(prepared.slot_bytes, prepared.slots));
  }
  if (gds != nullptr) machinery.gds_ring = gds->take_ring();
  IC_TRY(machinery.copier, target->make_copier());
  const unsigned processors = std::max(1U, os::usable_processors());
  RunnerOptions options;
  options.prefault_threads = std::clamp(processors, 1U, kPrefaultThreadsMax);
  return std::make_unique<Runner>(prepared.tables(), prepared.plan, prepared.readers, std::move(machinery),
                                  *environment.clock, environment.governor, options, std::move(hooks));
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
  report.device_copies = runner.device_copies().copies;
  report.device_copy_bytes = runner.device_copies().bytes;
  const io::EngineStatistics& statistics = runner.engine_statistics();
  report.gds_bytes = gds == nullptr ? 0 : gds->direct_bytes();
  report.bytes_read = statistics.bytes_read;
  report.requests = statistics.requests;
  report.retries = statistics.retries;
  report.notices = prepared.notices;
  if (target->gpu() != nullptr && target->gpu()->is_double()) {
    report.on_double = true;
    report.notices.emplace_back("the GPU is a double for tests: what it takes is no speed");
  }
  if (!backend_reason.empty()) report.notices.push_back("io_uring is not used: " + backend_reason);
  return report;
}

LoadedTensor loaded_tensor(const Prepared& prepared, std::size_t index, const memory::Block& block) {
  // Where a tensor of zero bytes points: aligned, never null, never to be read.
  alignas(4096) static std::byte nowhere[4096];
  const PlannedTensor& planned = prepared.plan.tensors[index];
  const safetensors::Tensor& tensor = prepared.tables().tensor(planned.ref);
  LoadedTensor one{tensor.name, tensor.dtype, planned.shape, nowhere, planned.bytes, -1, nullptr};
  if (planned.placement != Placement::empty) {
    const memory::Span span = planned.span_in(block.span);
    one.data = span.host();
    one.device = span.device;
  }
  return one;
}

}  // namespace infercluster::load
