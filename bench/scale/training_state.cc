// SPDX-License-Identifier: Apache-2.0
#include "bench/scale/training_state.h"

#include <memory>
#include <string>
#include <vector>

#include "base/assert.h"

namespace infercluster::scale {
namespace {

using checkpoint::Cut;
using checkpoint::Mesh;
using checkpoint::Piece;
using checkpoint::Pieces;
using checkpoint::Sharding;

constexpr std::uint64_t kDataDimension = 0;  // of the mesh of a stage
constexpr std::uint64_t kTensorDimension = 1;

enum class Style : std::uint8_t { rows, columns, alike };  // how tensor parallelism cuts a parameter

struct Parameter {
  std::string name;
  std::vector<std::uint64_t> shape;
  Style style = Style::rows;
};

void add_layer(const Model& model, std::uint64_t layer, std::vector<Parameter>& into) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  into.insert(into.end(), {{prefix + "self_attn.q_proj.weight", {model.hidden, model.hidden}, Style::rows},
                           {prefix + "self_attn.k_proj.weight", {model.key_value, model.hidden}, Style::rows},
                           {prefix + "self_attn.v_proj.weight", {model.key_value, model.hidden}, Style::rows},
                           {prefix + "self_attn.o_proj.weight", {model.hidden, model.hidden}, Style::columns},
                           {prefix + "mlp.gate_proj.weight", {model.feed_forward, model.hidden}, Style::rows},
                           {prefix + "mlp.up_proj.weight", {model.feed_forward, model.hidden}, Style::rows},
                           {prefix + "mlp.down_proj.weight", {model.hidden, model.feed_forward}, Style::columns},
                           {prefix + "input_layernorm.weight", {model.hidden}, Style::alike},
                           {prefix + "post_attention_layernorm.weight", {model.hidden}, Style::alike}});
}

std::vector<Parameter> parameters_of(const Model& model, std::uint64_t stage, std::uint64_t stages) {
  std::vector<Parameter> all;
  if (stage == 0) all.push_back({"model.embed_tokens.weight", {model.vocabulary, model.hidden}, Style::rows});
  for (std::uint64_t layer = stage * model.layers / stages; layer < (stage + 1) * model.layers / stages; ++layer)
    add_layer(model, layer, all);
  if (stage + 1 == stages) {
    all.push_back({"model.norm.weight", {model.hidden}, Style::alike});
    all.push_back({"lm_head.weight", {model.vocabulary, model.hidden}, Style::rows});
  }
  return all;
}

std::vector<Cut> cuts_of(Style style) {
  const Cut data{kDataDimension, 0};
  if (style == Style::alike) return {data};
  return {{kTensorDimension, style == Style::rows ? 0U : 1U}, data};
}

}  // namespace

Parallelism parallelism_of(std::uint64_t world) {
  switch (world) {
    case 8:
      return {1, 1, 8};
    case 64:
      return {2, 4, 8};
    case 512:
      return {8, 8, 8};
    case 4096:
      return {16, 32, 8};
    default:
      IC_ASSERT(world == 16384);
      return {16, 128, 8};
  }
}

Pieces pieces_of(const Model& model, const Parallelism& parallelism, std::uint64_t rank) {
  const std::uint64_t stage_ranks = parallelism.data * parallelism.tensor;
  const std::uint64_t stage = rank / stage_ranks;
  auto made = Mesh::regular({parallelism.data, parallelism.tensor}, stage * stage_ranks, {parallelism.tensor, 1});
  const auto mesh = std::make_shared<const Mesh>(std::move(made).value());
  const std::uint64_t position = mesh->position_of(rank).value();
  Pieces pieces;
  for (const Parameter& parameter : parameters_of(model, stage, parallelism.stages)) {
    for (const char* what : {"", ".exp_avg", ".exp_avg_sq"}) {
      Piece piece{(*what == '\0' ? "" : "optimizer.state.") + parameter.name + what,
                  safetensors::Dtype::f32,
                  parameter.shape,
                  {},
                  Sharding{mesh, cuts_of(parameter.style)}};
      piece.box = shard_box(*piece.sharding, piece.shape, position);
      pieces.push_back(std::move(piece));
    }
    pieces.push_back({"optimizer.state." + parameter.name + ".step", safetensors::Dtype::f32, {}, {}});
  }
  return pieces;
}

std::uint64_t state_bytes(const Model& model) {
  std::uint64_t bytes = 0;
  for (const Parameter& parameter : parameters_of(model, 0, 1)) {
    std::uint64_t elements = 1;
    for (const std::uint64_t length : parameter.shape) elements *= length;
    bytes += 4 * (3 * elements + 1);
  }
  return bytes;
}

}  // namespace infercluster::scale
