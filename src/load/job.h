// SPDX-License-Identifier: Apache-2.0
// A running load. Its own threads do the work; callers wait, watch and cancel.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "io/backend.h"
#include "io/governor.h"
#include "load/gds_book.h"
#include "load/options.h"
#include "load/page_cache_filler.h"
#include "load/report.h"
#include "load/repository.h"
#include "safetensors/dtype.h"

namespace infercluster::load {

struct LoadedTensor {
  std::string name;
  safetensors::Dtype dtype = safetensors::Dtype::u8;
  std::vector<std::uint64_t> shape;  // as delivered: of the slice, where one was asked for
  void* data = nullptr;              // C order; an aligned non-null address also for zero bytes. Writable; on the
                                     // device, where the load had one
  std::uint64_t bytes = 0;
  int device = -1;              // CUDA ordinal; -1: the host
  std::shared_ptr<void> owner;  // keeps `data` valid; null for a tensor that went into memory of the caller
};

struct Loaded {
  std::vector<LoadedTensor> tensors;  // in the order of files and offsets
  safetensors::Metadata metadata;     // of the first file that has any
  Report report;
};

struct Progress {
  std::uint64_t bytes_done = 0;
  std::uint64_t bytes_total = 0;
};

// What a job borrows from its owner (api); outlives the job.
struct Environment {
  const Clock* clock = &steady_clock();
  io::Governor* governor = nullptr;   // null: nothing is limited
  PageCacheFiller* filler = nullptr;  // null: the page cache is left as it is
  GdsBook* gds = nullptr;             // null: GPUDirect Storage is not used
  // Called once for each job or stream that ran, on its thread, before its end is told: what it did, and the error it
  // ended with (null: none). Null: nobody asks.
  std::function<void(const Report& report, const Error* error)> ended;
  // How a backend is opened; tests put one in between that makes operations fail.
  std::function<Result<io::ChosenBackend>(const io::BackendOptions&)> open_backend = io::open_backend;
};

// Thread-safe. Destruction cancels and waits until no read is in flight.
class Job {
 public:
  // Plans, allocates and starts. All that can be refused before reading is refused here.
  static Result<std::unique_ptr<Job>> start(std::shared_ptr<const Repository> repository, const Options& options,
                                            const Environment& environment);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // True when the load has ended, well or not, within `timeout`.
  bool wait_for(std::chrono::nanoseconds timeout);
  void cancel();
  [[nodiscard]] Progress progress() const;
  // Waits for the end. The result, once; a second call is an error.
  Result<Loaded> finish();

  // Filling the page cache behind the load goes on after finish(), and after the job is gone; true when it is over.
  bool wait_for_page_cache(std::chrono::nanoseconds timeout);

 private:
  struct Impl;
  explicit Job(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace infercluster::load
