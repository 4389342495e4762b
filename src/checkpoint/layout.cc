// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/layout.h"

#include <unordered_map>
#include <unordered_set>

#include "safetensors/header.h"

namespace infercluster::checkpoint {
namespace {

// Transformers and its kin ask for it.
const safetensors::Metadata kMetadata{{"format", "pt"}};

}  // namespace

Result<Layout> lay_out(const Pieces& pieces, std::span<const std::size_t> writes) {
  std::unordered_set<std::string> whole;
  for (const std::size_t i : writes) {
    if (pieces[i].box.lengths == pieces[i].shape) whole.insert(pieces[i].tensor);
  }
  std::vector<safetensors::Tensor> tensors;
  std::unordered_map<std::string, std::size_t> piece_of;
  for (const std::size_t i : writes) {
    const Piece& piece = pieces[i];
    std::string name = piece.tensor;
    if (piece.box.lengths != piece.shape) {
      name += to_string(piece.box);
      while (whole.contains(name) || piece_of.contains(name)) name += '\'';  // somebody's tensor is called so
    }
    piece_of.emplace(name, i);
    tensors.push_back(
        {.name = std::move(name), .dtype = piece.dtype, .shape = piece.box.lengths, .begin = 0, .end = 0});
  }
  Layout layout;
  IC_TRY(layout.header, safetensors::build_header(tensors, kMetadata));
  layout.bytes = layout.header.size();
  for (const safetensors::Tensor& tensor : tensors) {
    const std::size_t i = piece_of.at(tensor.name);
    const Piece& piece = pieces[i];
    const std::uint64_t begin = layout.header.size() + tensor.begin;
    layout.placements.push_back({i, begin, tensor.bytes()});
    manifest::Chunk chunk{piece.tensor, piece.dtype, piece.shape, piece.box, 0, begin, tensor.bytes()};
    // Wherever a box without elements began, it is nowhere.
    if (tensor.bytes() == 0) chunk.box.offsets.assign(piece.shape.size(), 0);
    layout.chunks.push_back(std::move(chunk));
    layout.bytes = begin + tensor.bytes();
  }
  return layout;
}

}  // namespace infercluster::checkpoint
