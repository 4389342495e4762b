// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/export.h"

#include <algorithm>

#include "checkpoint/export_place.h"
#include "checkpoint/reading.h"

namespace infercluster::checkpoint {
namespace {

class Export {
 public:
  Export(io::FileCalls& calls, const Checkpoint& checkpoint, const ExportPlan& plan, const ExportOptions& options)
      : calls_(calls), checkpoint_(checkpoint), plan_(plan), options_(options) {}

  Status write(ExportPlace& place) {
    for (const ExportFile& file : plan_.files) {
      IC_CHECK(write_file(place, file));
      report_.files.push_back({place.path_of(file.name), file.bytes, file.sources.size()});
      report_.tensors += file.sources.size();
    }
    report_.bytes = plan_.data_bytes;
    if (plan_.index.empty()) return {};
    report_.index_path = place.path_of(kExportIndexName);
    IC_TRY(io::OutputFile index, place.create(kExportIndexName));
    IC_CHECK(io::write_fully(calls_, index, std::as_bytes(std::span(plan_.index)), 0));
    return finish(std::move(index));
  }
  [[nodiscard]] ExportReport take_report() { return std::move(report_); }

 private:
  Status write_file(ExportPlace& place, const ExportFile& file) {
    IC_TRY(io::OutputFile output, place.create(file.name));
    IC_CHECK(calls_.reserve(output, file.bytes));  // a device that is too small says so at once
    IC_CHECK(io::write_fully(calls_, output, std::as_bytes(std::span(file.header)), 0));
    std::uint64_t at = file.header.size();
    TensorWindows windows(file.sources, options_.window_bytes);
    WindowReader reader(checkpoint_, file.sources, options_.restore);
    while (true) {
      IC_TRY(const std::optional<TensorWindow> window, windows.next());
      if (!window) break;
      if (options_.progress && !options_.progress(done_, plan_.data_bytes))
        return Error(ErrorCode::cancelled, "the export was cancelled").with_path(place.path_of(file.name));
      IC_TRY(const std::span<const std::byte> bytes, reader.read(*window));
      IC_CHECK(io::write_fully(calls_, output, bytes, at));
      at += bytes.size();
      done_ += bytes.size();
    }
    report_.bytes_read += reader.bytes_read();
    report_.memory_bytes = std::max(report_.memory_bytes, reader.memory_bytes());
    return finish(std::move(output));
  }

  Status finish(io::OutputFile file) const {
    IC_CHECK(calls_.sync(file));
    return calls_.close(std::move(file));
  }

  io::FileCalls& calls_;
  const Checkpoint& checkpoint_;
  const ExportPlan& plan_;
  const ExportOptions& options_;
  std::uint64_t done_ = 0;
  ExportReport report_;
};

}  // namespace

Result<ExportReport> export_to(io::FileCalls& calls, const Checkpoint& checkpoint,
                               const std::vector<ExportedTensor>& tensors, const std::string& destination,
                               const ExportOptions& options) {
  IC_TRY(const ExportPlan plan, plan_export(tensors, options.shard_bytes));
  IC_TRY(ExportPlace place, ExportPlace::open(calls, destination, options.other_files));
  Export run(calls, checkpoint, plan, options);
  IC_CHECK(run.write(place));
  IC_CHECK(place.publish());
  return run.take_report();
}

}  // namespace infercluster::checkpoint
