// SPDX-License-Identifier: Apache-2.0
// Writes realistic model repositories to try loads on: sharded safetensors files with an index, and the small files
// beside.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "load/job.h"
#include "load/synth_content.h"
#include "load/synth_model.h"

namespace infercluster::load {

struct SynthOptions {
  SynthPreset preset = SynthPreset::llama_8b_like;
  std::uint64_t bytes = std::uint64_t{2} << 30;  // of all tensors; kept to within 1 %
  std::uint32_t shards = 0;  // files of weights; 0: 4 at least, of 5 GB at most. Fewer when there are fewer tensors
  std::uint64_t seed = 0;
  std::function<bool(Progress)> progress{};  // called after every few MiB; false cancels. May be empty
};

struct SynthReport {
  std::vector<std::string> shards;  // paths
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;       // of all tensors
  std::uint64_t file_bytes = 0;  // of all files
};

// Creates `directory`, or fills it when it is there and empty; anything else is refused. All is synced to disk on
// return. The index is written last. On error, or when cancelled, the files that were written are removed again. The
// bytes of tensor T are SynthContent(seed, T.name, T.dtype).
Result<SynthReport> write_synthetic_repository(const std::string& directory, const SynthOptions& options);

}  // namespace infercluster::load
