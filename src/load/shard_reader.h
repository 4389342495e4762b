// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "io/source.h"
#include "load/gds.h"
#include "load/seal.h"

namespace infercluster::load {

// What one shard is read from, and what its bytes are checked against. Thread rule: the job's thread, once the job
// runs.
struct ShardReader {
  std::unique_ptr<io::FileSource> source;  // null: nothing of this shard is wanted
  std::unique_ptr<GdsSource> gds;          // instead of it, where GPUDirect Storage reads; null: it does not
  io::SourceSet sources;                   // what a transfer asks, in this order
  std::optional<Seal> seal;
  std::string sha256;        // expected, 64 hexadecimal digits; empty: not checked
  std::string verification;  // for the report
  std::string gds_reason;    // for the report: why by GDS, or why not; empty on the host
};

}  // namespace infercluster::load
