// SPDX-License-Identifier: Apache-2.0
// What rank 0 makes of what all ranks see on their fast tiers: which drains go on, and where a load reads from.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/directory.h"
#include "checkpoint/fast_tier.h"
#include "io/files.h"

namespace infercluster::checkpoint {

// By rank of this job.
using Visible = std::vector<std::vector<FastPart>>;

// A drain that was interrupted.
struct Resumption {
  std::uint64_t step = 0;
  std::uint64_t epoch = 0;  // in the root
  std::uint64_t world = 0;  // that saved
  std::string save_id;
  std::string plan_hash;
  std::vector<std::uint64_t> drainers;  // by part: the rank of this job that brings it to the root
};
std::string encode(const std::vector<Resumption>& resumptions);
Result<std::vector<Resumption>> decode_resumptions(std::string_view bytes);

// Ascending by step. What waits for the root, and of which a part is seen by nobody, is a warning.
Result<std::vector<Resumption>> choose_resumptions(io::FileCalls& calls, const io::Directory& root,
                                                   const Visible& visible);

// Where a load reads from.
struct LoadPlace {
  enum class Kind : std::uint8_t {
    root,
    fast,
    draining,  // the root will have it once a drain of this job has ended: choose again then
  };
  Kind kind = Kind::root;
  std::uint64_t step = 0;
  std::uint64_t world = 0;  // that saved; fast only
  std::string save_id;      // fast only
  bool is_at_root = true;   // the root has this very save too
  std::string notice;       // why it is not the fast tier, or not the newest step; empty: nothing to say
};
std::string encode(const std::optional<LoadPlace>& place);
Result<std::optional<LoadPlace>> decode_place(std::string_view bytes);

struct WantedStep {
  std::optional<std::uint64_t> step;  // none: the newest
  StockDcp stock = StockDcp::passed_over;
  std::function<bool(std::uint64_t step)> is_draining;  // by this job
};
// The fast tier counts where each rank sees all parts. None: there is no such step (with `step`: on no tier).
Result<std::optional<LoadPlace>> choose_place(io::FileCalls& calls, const io::Directory& root, const Visible& visible,
                                              const WantedStep& wanted);

}  // namespace infercluster::checkpoint
