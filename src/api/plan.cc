// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "api/runtime.h"
#include "base/units.h"
#include "infercluster/infercluster.h"
#include "load/prepare.h"
#include "load/scan.h"

namespace infercluster {
namespace {

constexpr std::uint64_t kProbeBytes = 64 * kMiB;

std::vector<PlannedFile> planned_files(const load::Prepared& prepared) {
  std::vector<PlannedFile> files;
  for (std::size_t i = 0; i < prepared.readers.size(); ++i) {
    const io::FileSource* const source = prepared.readers[i].source.get();
    PlannedFile file;
    file.path = prepared.repository->shards()[i].path;
    file.mode = source == nullptr ? "none" : std::string(io::name_of(source->mode()));
    file.reason = source == nullptr ? "nothing of it is wanted" : source->reason();
    files.push_back(std::move(file));
  }
  for (const load::PlannedTensor& tensor : prepared.plan.tensors) files[tensor.ref.shard].bytes_wanted += tensor.bytes;
  for (const load::Unit& unit : prepared.plan.units) {
    PlannedFile& file = files[unit.shard];
    file.requests += unit.transfers.size();
    for (const load::PlannedTransfer& transfer : unit.transfers)
      file.bytes_read += transfer.end_of_data - transfer.file_offset;
  }
  return files;
}

// Bytes per second that the first `bytes` of a file come at, in the mode that it would be read in now.
Result<double> probed_rate(load::Scanner& scanner, const std::string& path, std::uint64_t bytes) {
  std::uint64_t seen = 0;
  const Clock::TimePoint start = steady_clock().now();
  const auto scanned = scanner.scan(
      path,
      [&](std::span<const std::byte> piece) -> Status {
        seen += piece.size();
        return {};
      },
      [&] { return seen < bytes; });
  if (!scanned.ok() && scanned.error().code() != ErrorCode::cancelled) return scanned.error();
  return static_cast<double>(seen) / seconds_between(start, steady_clock().now());
}

// One probe per mode: of the largest file that would be read so.
Status predict(const load::Options& options, const load::Environment& environment, PlanSummary& summary) {
  std::map<std::string, const PlannedFile*> largest;
  for (const PlannedFile& file : summary.files) {
    if (file.bytes_read == 0) continue;
    const PlannedFile*& best = largest[file.mode];
    if (best == nullptr || best->bytes_read < file.bytes_read) best = &file;
  }
  if (largest.empty()) return {};
  IC_TRY(const auto scanner, load::Scanner::open({options.direct, options.backend}, environment));
  std::map<std::string, double> rates;
  for (const auto& [mode, file] : largest) {
    IC_TRY(rates[mode], probed_rate(*scanner, file->path, kProbeBytes / largest.size()));
  }
  for (const PlannedFile& file : summary.files) {
    if (file.bytes_read > 0) summary.predicted_seconds += static_cast<double>(file.bytes_read) / rates[file.mode];
  }
  summary.predicted_rate = static_cast<double>(summary.bytes_read) / summary.predicted_seconds;
  return {};
}

}  // namespace

Result<PlanSummary> plan(const load::Repository& repository, const load::Options& options, Probe probe) {
  IC_TRY(const api::Runtime* const runtime, api::Runtime::get());
  // Borrowed: the plan is gone when this function returns.
  const std::shared_ptr<const load::Repository> borrowed(std::shared_ptr<void>(), &repository);
  std::string backend;
  {
    IC_TRY(const io::ChosenBackend chosen, io::open_backend(options.backend));
    backend = chosen.backend->name();
  }
  IC_TRY(const std::shared_ptr<load::Target> target, load::open_target(options));
  IC_TRY(const load::Prepared prepared, load::prepare(borrowed, options, backend, load::Purpose::load, *target));
  PlanSummary summary;
  summary.files = planned_files(prepared);
  summary.tensors = prepared.plan.tensors.size();
  summary.bytes_wanted = prepared.plan.tensor_bytes;
  summary.memory_bytes = prepared.plan.arena_bytes;
  summary.working_bytes = prepared.working_bytes() - prepared.plan.padding_bytes();
  summary.bytes_to_move = prepared.plan.move_bytes;
  for (const PlannedFile& file : summary.files) {
    summary.bytes_read += file.bytes_read;
    summary.requests += file.requests;
  }
  if (probe == Probe::yes) IC_CHECK(predict(options, runtime->environment(), summary));
  return summary;
}

}  // namespace infercluster
