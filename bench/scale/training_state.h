// SPDX-License-Identifier: Apache-2.0
// What the ranks of a training job hold: the tensors' metadata, not their bytes.
#pragma once

#include <cstdint>

#include "checkpoint/plan.h"

namespace infercluster::scale {

// A decoder of Llama 3's kind.
struct Model {
  std::uint64_t layers = 126;
  std::uint64_t hidden = 16384;
  std::uint64_t key_value = 1024;  // grouped heads together
  std::uint64_t feed_forward = 53248;
  std::uint64_t vocabulary = 128256;
};

// Rank = (stage * data + data coordinate) * tensor + tensor coordinate.
struct Parallelism {
  std::uint64_t stages = 1;  // of the pipeline
  std::uint64_t data = 1;    // FSDP shards
  std::uint64_t tensor = 1;

  [[nodiscard]] std::uint64_t world() const { return stages * data * tensor; }
};

// Llama 3.1 405B over 8, 64, 512, 4096 or 16384 ranks.
Parallelism parallelism_of(std::uint64_t world);

// Parameters and two moments of Adam's in F32, cut by tensor parallelism first and by FSDP within, and a step counter
// per parameter, a plain scalar that all ranks of the stage hold.
checkpoint::Pieces pieces_of(const Model& model, const Parallelism& parallelism, std::uint64_t rank);

// Of all tensors, each once.
std::uint64_t state_bytes(const Model& model);

}  // namespace infercluster::scale
