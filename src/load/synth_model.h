// SPDX-License-Identifier: Apache-2.0
// Which tensors a synthetic model has, and the small files beside them. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "safetensors/header.h"

namespace infercluster::load {

enum class SynthPreset : std::uint8_t {
  llama_8b_like,  // "llama-8b-like": a dense decoder in bf16
  mixture_like,   // "mixture-like": experts in fp8 with f32 scales per 128 x 128 block
  many_small,     // "many-small": up to 100,000 tiny bf16 tensors
};
std::string_view name_of(SynthPreset preset);
std::optional<SynthPreset> parse_synth_preset(std::string_view name);

inline constexpr std::uint64_t kSynthBytesMin = 1 << 20;
inline constexpr std::uint64_t kSynthBytesMax = std::uint64_t{1} << 42;  // 4 TiB

// In elements. Attention heads are 128 wide.
struct SynthShape {
  std::uint64_t hidden = 0;  // a multiple of 128
  std::uint64_t intermediate = 0;
  std::uint64_t layers = 0;
  std::uint64_t vocabulary = 0;
  std::uint64_t experts = 0;  // per layer; 0: dense
  std::uint64_t key_value_heads = 0;

  [[nodiscard]] std::uint64_t heads() const { return hidden / 128; }
};

struct SynthModel {
  SynthPreset preset = SynthPreset::llama_8b_like;
  SynthShape shape;
  std::vector<safetensors::Tensor> tensors;  // in the order of the model; begin and end unset
  std::uint64_t bytes = 0;                   // of all tensors
};

// A model of `bytes` bytes of tensors, to within 1 %. Refused: sizes out of the limits above.
Result<SynthModel> synthesize_model(SynthPreset preset, std::uint64_t bytes);

// Name and content of config.json, generation_config.json, tokenizer.json and tokenizer_config.json.
std::vector<std::pair<std::string, std::string>> synthesize_small_files(const SynthModel& model);

}  // namespace infercluster::load
