// SPDX-License-Identifier: Apache-2.0
// The public C++ API. Errors are values (base/result.h); no exception leaves it. All functions are thread-safe unless
// said otherwise. In a process forked after first use, every call gives an error (code unsupported): rings and threads
// stayed with the parent. Environment: INFERCLUSTER_BACKEND=uring|threads|auto, INFERCLUSTER_DIRECT=auto|always|never,
// INFERCLUSTER_PAGE_CACHE=auto|keep|bypass, INFERCLUSTER_MEMORY=SIZE, INFERCLUSTER_VERIFY=auto|always|never,
// INFERCLUSTER_GDS=auto|always|never, INFERCLUSTER_SEAL_DIR=DIR, INFERCLUSTER_LATENCY_TARGET=DURATION give defaults for options left as they are.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "load/job.h"
#include "load/options.h"
#include "load/report.h"
#include "load/repository.h"
#include "load/stream.h"
#include "memory/block.h"

namespace infercluster {

// Options as the environment variables above set them: what every front end starts from.
Result<load::Options> options_from_environment();
// Sets the option `name` ("VERIFY", as in INFERCLUSTER_VERIFY) from its word; an empty text leaves it as it is.
Status set_option(load::Options& options, std::string_view name, std::string_view text);

struct OpenOptions {
  std::string revision;  // of a repository id in the Hugging Face cache; empty: main
  safetensors::Compatibility compatibility = safetensors::Compatibility::strict;
  bool allow_trailing_bytes = false;
};

// `source`: a file, a directory, a Hugging Face cache folder, or a repository id "org/name" that the cache has. Reads
// headers only.
Result<std::shared_ptr<const load::Repository>> open(const std::string& source, const OpenOptions& options = {});

Result<std::unique_ptr<load::Job>> start_load(std::shared_ptr<const load::Repository> repository,
                                              const load::Options& options);
Result<std::unique_ptr<load::Stream>> start_stream(std::shared_ptr<const load::Repository> repository,
                                                   const load::Options& options);

// Memory of a CUDA device, for callers without an allocator of their own. Errors: unsupported (no driver, with the
// reason), invalid_argument (no such device), out_of_memory.
Result<memory::Block> allocate_on_device(int ordinal, std::uint64_t bytes);
// Returns when the bytes are at `to`. Work of others on the device memory is done before.
Status copy_to_host(const memory::Span& from, std::byte* to);

struct PlannedFile {
  std::string path;
  std::uint64_t bytes_wanted = 0;
  std::uint64_t bytes_read = 0;  // with alignment
  std::uint64_t requests = 0;
  std::string mode;  // as it would be chosen now
  std::string reason;
};

struct PlanSummary {
  std::vector<PlannedFile> files;
  std::uint64_t tensors = 0;
  std::uint64_t bytes_wanted = 0;
  std::uint64_t bytes_read = 0;
  std::uint64_t requests = 0;
  std::uint64_t memory_bytes = 0;   // tensors and their padding
  std::uint64_t working_bytes = 0;  // beyond them
  std::uint64_t bytes_to_move = 0;  // unaligned in the file
  double predicted_seconds = 0;     // 0: not predicted
  double predicted_rate = 0;        // bytes per second, as probed
};
// What a load would do. `probe`: reads up to 64 MiB to predict the time; else the prediction is left out.
enum class Probe : std::uint8_t { no, yes };
Result<PlanSummary> plan(const load::Repository& repository, const load::Options& options, Probe probe);

// Seals: checksums of stock files. See load/seal.h for the format.
struct SealReport {
  struct File {
    std::string path;
    std::string seal_path;
    std::uint64_t bytes = 0;
    std::string root;  // CRC32C of the whole file, 8 hex digits
  };
  std::vector<File> files;
  double seconds = 0;
};
using ProgressCallback = std::function<bool(load::Progress)>;  // false cancels
struct SealOptions {
  std::string directory;  // where seals go; empty: beside the files
  bool replace = false;   // an existing seal that differs is an error otherwise
};
Result<SealReport> seal(const load::Repository& repository, const SealOptions& options,
                        const ProgressCallback& progress = {});

struct VerifyReport {
  struct File {
    std::string path;
    std::string method;  // "seal", "sha256", "none"
    bool good = false;
    std::string message;  // what is wrong: tensor and offset of the first bad block, and how many are bad
  };
  std::vector<File> files;  // all of them; one bad file does not stop the check of the others
  double seconds = 0;
  std::uint64_t bytes = 0;  // that were read
  std::string hint;         // how to fetch the bad files, and only these; empty when none is bad
  [[nodiscard]] bool good() const;
};
Result<VerifyReport> verify(const load::Repository& repository, const std::string& seal_directory,
                            const ProgressCallback& progress = {});

// One line of `infercluster doctor`.
struct Finding {
  enum class Level : std::uint8_t { good, note, warning };
  Level level = Level::good;
  std::string subject;      // "io_uring", "locked memory", "huge pages", ...
  std::string state;        // what was found
  std::string consequence;  // what it means for loads
  std::string remedy;       // what to do; empty when nothing is to be done
};
std::vector<Finding> diagnose(const std::string& path);  // path may be empty

// Prometheus text of this process's counters.
std::string metrics_text();
std::string_view version();

}  // namespace infercluster
