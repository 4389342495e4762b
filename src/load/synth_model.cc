// SPDX-License-Identifier: Apache-2.0
#include "load/synth_model.h"

#include <algorithm>
#include <array>

#include "base/units.h"

namespace infercluster::load {
namespace {

using safetensors::Dtype;
using safetensors::Tensor;

constexpr std::uint64_t kHeadWidth = 128;
constexpr std::uint64_t kScaleBlock = 128;  // elements per side of the block that one scale belongs to
constexpr std::uint64_t kHiddenMax = 32768;
constexpr std::uint64_t kVocabularyMin = 256;
constexpr std::uint64_t kManySmallCountMax = 100'000;
constexpr std::uint64_t kManySmallBytesMin = 64;  // per tensor

constexpr std::array<std::pair<SynthPreset, std::string_view>, 3> kNames{{
    {SynthPreset::llama_8b_like, "llama-8b-like"},
    {SynthPreset::mixture_like, "mixture-like"},
    {SynthPreset::many_small, "many-small"},
}};

Tensor tensor(std::string name, Dtype dtype, std::vector<std::uint64_t> shape) {
  Tensor made;
  made.name = std::move(name);
  made.dtype = dtype;
  made.shape = std::move(shape);
  return made;
}

std::uint64_t bytes_of(const std::vector<Tensor>& tensors) {
  std::uint64_t sum = 0;  // far below 2^64: sizes are limited
  for (const Tensor& t : tensors) sum += safetensors::tensor_bytes(t.dtype, t.shape).value();
  return sum;
}

void add_weight(std::vector<Tensor>& tensors, const SynthShape& shape, const std::string& name, std::uint64_t rows,
                std::uint64_t columns) {
  if (shape.experts == 0) {
    tensors.push_back(tensor(name + ".weight", Dtype::bf16, {rows, columns}));
    return;
  }
  tensors.push_back(tensor(name + ".weight", Dtype::f8_e4m3, {rows, columns}));
  const auto blocks = [](std::uint64_t n) { return (n + kScaleBlock - 1) / kScaleBlock; };
  tensors.push_back(tensor(name + ".weight_scale_inv", Dtype::f32, {blocks(rows), blocks(columns)}));
}

void add_feed_forward(std::vector<Tensor>& tensors, const SynthShape& shape, const std::string& name) {
  add_weight(tensors, shape, name + ".down_proj", shape.hidden, shape.intermediate);
  add_weight(tensors, shape, name + ".gate_proj", shape.intermediate, shape.hidden);
  add_weight(tensors, shape, name + ".up_proj", shape.intermediate, shape.hidden);
}

void add_layer(std::vector<Tensor>& tensors, const SynthShape& shape, std::uint64_t layer) {
  const std::string name = "model.layers." + std::to_string(layer);
  const std::uint64_t key_value = shape.key_value_heads * kHeadWidth;
  tensors.push_back(tensor(name + ".input_layernorm.weight", Dtype::bf16, {shape.hidden}));
  if (shape.experts == 0) {
    add_feed_forward(tensors, shape, name + ".mlp");
  } else {
    for (std::uint64_t expert = 0; expert < shape.experts; ++expert) {
      add_feed_forward(tensors, shape, name + ".mlp.experts." + std::to_string(expert));
    }
    tensors.push_back(tensor(name + ".mlp.gate.e_score_correction_bias", Dtype::f32, {shape.experts}));
    tensors.push_back(tensor(name + ".mlp.gate.weight", Dtype::bf16, {shape.experts, shape.hidden}));
  }
  tensors.push_back(tensor(name + ".post_attention_layernorm.weight", Dtype::bf16, {shape.hidden}));
  add_weight(tensors, shape, name + ".self_attn.k_proj", key_value, shape.hidden);
  add_weight(tensors, shape, name + ".self_attn.o_proj", shape.hidden, shape.hidden);
  add_weight(tensors, shape, name + ".self_attn.q_proj", shape.hidden, shape.hidden);
  add_weight(tensors, shape, name + ".self_attn.v_proj", key_value, shape.hidden);
}

std::uint64_t layer_bytes(const SynthShape& shape) {
  std::vector<Tensor> tensors;
  add_layer(tensors, shape, 0);
  return bytes_of(tensors);
}

// Of one row of the embedding and of the head, in bf16.
std::uint64_t vocabulary_row_bytes(const SynthShape& shape) {
  return 2 * shape.hidden * 2;
}

// The final norm.
std::uint64_t rest_bytes(const SynthShape& shape) {
  return shape.hidden * 2;
}

// All but the number of layers and the rest of the vocabulary follow from the hidden size, in the proportions of the
// real ones.
SynthShape shape_of(SynthPreset preset, std::uint64_t hidden) {
  SynthShape shape;
  shape.hidden = hidden;
  const bool mixture = preset == SynthPreset::mixture_like;
  shape.experts = mixture ? 16 : 0;
  shape.intermediate = mixture ? align_up(hidden / 2, 128) : align_up(hidden * 7 / 2, 128);
  shape.layers = hidden / 128;
  shape.vocabulary = std::max(kVocabularyMin, align_down(hidden * 31, 256));
  const std::uint64_t heads = shape.heads();
  shape.key_value_heads = std::max<std::uint64_t>(1, heads / 4);
  while (heads % shape.key_value_heads != 0) --shape.key_value_heads;
  return shape;
}

std::uint64_t bytes_of(const SynthShape& shape) {
  return shape.layers * layer_bytes(shape) + shape.vocabulary * vocabulary_row_bytes(shape) + rest_bytes(shape);
}

// The largest hidden size whose model fits; then more layers, then a larger vocabulary.
Result<SynthShape> fit(SynthPreset preset, std::uint64_t bytes) {
  SynthShape shape = shape_of(preset, 128);
  shape.vocabulary = kVocabularyMin;
  if (bytes_of(shape) > bytes) {
    return Error(ErrorCode::invalid_argument, "a " + std::string(name_of(preset)) + " model has at least " +
                                                  format_bytes(bytes_of(shape)) + " of tensors");
  }
  for (std::uint64_t hidden = 256; hidden <= kHiddenMax; hidden += 128) {
    const SynthShape next = shape_of(preset, hidden);
    if (bytes_of(next) > bytes) break;
    shape = next;
  }
  shape.layers += (bytes - bytes_of(shape)) / layer_bytes(shape);
  shape.vocabulary += (bytes - bytes_of(shape)) / vocabulary_row_bytes(shape);
  return shape;
}

std::vector<Tensor> tensors_of(const SynthShape& shape) {
  std::vector<Tensor> tensors;
  tensors.push_back(tensor("model.embed_tokens.weight", Dtype::bf16, {shape.vocabulary, shape.hidden}));
  for (std::uint64_t layer = 0; layer < shape.layers; ++layer) add_layer(tensors, shape, layer);
  tensors.push_back(tensor("model.norm.weight", Dtype::bf16, {shape.hidden}));
  tensors.push_back(tensor("lm_head.weight", Dtype::bf16, {shape.vocabulary, shape.hidden}));
  return tensors;
}

std::vector<Tensor> many_small(std::uint64_t bytes) {
  const std::uint64_t count = std::clamp<std::uint64_t>(bytes / kManySmallBytesMin, 1, kManySmallCountMax);
  std::vector<Tensor> tensors;
  tensors.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    // Shared out so that the rest of the division is not lost.
    const std::uint64_t elements = bytes / 2 * (i + 1) / count - bytes / 2 * i / count;
    tensors.push_back(tensor("blocks." + std::to_string(i / 100) + ".adapters." + std::to_string(i % 100) + ".bias",
                             Dtype::bf16, {elements}));
  }
  return tensors;
}

}  // namespace

std::string_view name_of(SynthPreset preset) {
  for (const auto& [known, name] : kNames) {
    if (known == preset) return name;
  }
  return "unknown";
}

std::optional<SynthPreset> parse_synth_preset(std::string_view name) {
  for (const auto& [preset, known] : kNames) {
    if (known == name) return preset;
  }
  return std::nullopt;
}

Result<SynthModel> synthesize_model(SynthPreset preset, std::uint64_t bytes) {
  if (bytes < kSynthBytesMin || bytes > kSynthBytesMax) {
    return Error(ErrorCode::invalid_argument, "synthetic models have from " + format_bytes(kSynthBytesMin) + " to " +
                                                  format_bytes(kSynthBytesMax) + " of tensors, not " +
                                                  format_bytes(bytes));
  }
  SynthModel model;
  model.preset = preset;
  if (preset == SynthPreset::many_small) {
    model.tensors = many_small(bytes);
  } else {
    IC_TRY(model.shape, fit(preset, bytes));
    model.tensors = tensors_of(model.shape);
  }
  model.bytes = bytes_of(model.tensors);
  return model;
}

}  // namespace infercluster::load
