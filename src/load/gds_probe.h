// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/result.h"
#include "io/engine.h"
#include "memory/copier.h"
#include "memory/ring.h"

namespace infercluster::load {

// One way from a file to a device: a source that fills slots of a ring, and copies from there.
struct ProbedWay {
  io::Source& source;
  memory::Ring& ring;
  memory::Copier& copier;
};

struct ProbedRange {
  std::uint64_t begin = 0;  // file offsets, multiples of the source's alignment
  std::uint64_t end = 0;
};

// Bytes per second with which a way brings the range to `scratch`, device memory of at least a slot. Errors: those of
// the reads and copies. Nothing is in flight when it returns.
Result<double> probe_rate(const ProbedWay& way, const ProbedRange& range, const memory::Span& scratch,
                          io::Engine& engine, const Clock& clock);

}  // namespace infercluster::load
