// SPDX-License-Identifier: Apache-2.0
// From a repository and options to all that a load, a stream or a printed plan needs: what is wanted, how each shard is
// read, and the plan.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/backend.h"
#include "load/options.h"
#include "load/plan.h"
#include "load/report.h"
#include "load/repository.h"
#include "load/shard_reader.h"
#include "load/target.h"

namespace infercluster::load {

// Memory beyond the tensors, unless the caller says otherwise.
inline constexpr std::uint64_t kWorkingBytesDefault = 32u << 20;
// Set aside of it for tables, rings and threads' stacks.
inline constexpr std::uint64_t kBookkeepingBytes = 1u << 20;
// Of a load to a device: reads and copies overlap, and a device takes them faster.
inline constexpr std::uint64_t kDeviceWorkingBytesDefault = 60u << 20;
// A stream's window, unless the caller says otherwise; less where less memory is free.
inline constexpr std::uint64_t kStreamWindowDefault = 1u << 30;

enum class Purpose : std::uint8_t { load, stream };

struct Prepared {
  std::shared_ptr<const Repository> repository;
  std::vector<ShardReader> readers;  // one per shard
  Plan plan;
  std::uint64_t slot_bytes = 0;  // of the ring; 0: no ring
  unsigned slots = 0;
  std::uint64_t window = 0;  // of a stream
  bool on_host = true;       // else the tensors go to a device
  std::vector<std::string> notices;

  [[nodiscard]] const Tables& tables() const { return repository->tables(); }
  [[nodiscard]] std::uint64_t ring_bytes() const { return slot_bytes * slots; }
  // Of the host, beyond the tensors.
  [[nodiscard]] std::uint64_t working_bytes() const {
    return kBookkeepingBytes + ring_bytes() + (on_host ? plan.padding_bytes() : 0);
  }
};

// Opens the files that are needed and plans. Reads no data. `backend` is Backend::name(): it decides the size of
// requests. Errors: what select_tensors refuses; a memory budget that is too small (too_large, with the figure that is
// needed); Verify::always where a file has no checksums (unsupported).
Result<Prepared> prepare(std::shared_ptr<const Repository> repository, const Options& options, std::string_view backend,
                         Purpose purpose, const Target& target);

// The report's part about files, at the end of a load.
std::vector<FileReport> file_reports(const Prepared& prepared);

// The files are still those that were opened; else the error of the first that is not.
Status check_unchanged(const Prepared& prepared);

}  // namespace infercluster::load
