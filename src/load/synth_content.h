// SPDX-License-Identifier: Apache-2.0
// The bytes of synthetic tensors: a pure function of seed, tensor name, dtype and offset, so that any part of any
// tensor can be made again for a check. Values are finite and small, as weights are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "safetensors/dtype.h"

namespace infercluster::load {

inline constexpr std::uint64_t kSynthBlockBytes = std::uint64_t{64} << 10;

// Of one tensor.
class SynthContent {
 public:
  // Asserted: bf16, f32 or f8_e4m3, which are what the presets use.
  SynthContent(std::uint64_t seed, std::string_view tensor_name, safetensors::Dtype dtype);

  // The bytes [offset, offset + into.size()) of the tensor. `offset` is a multiple of kSynthBlockBytes (asserted).
  void fill(std::uint64_t offset, std::span<std::byte> into) const;

 private:
  std::uint64_t key_ = 0;
  std::uint64_t random_bits_ = 0;  // of each 8 bytes, those that are random
  std::uint64_t fixed_bits_ = 0;   // and those that are always set
};

}  // namespace infercluster::load
