// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/mesh_table.h"

namespace infercluster::checkpoint {

std::size_t MeshTable::number_of(const Mesh* mesh) {
  const auto [known, fresh] = numbers_.try_emplace(mesh, meshes_.size());
  if (!fresh) return known->second;
  exchange::Writer text;
  mesh->encode(text);
  const auto [equal, first] = by_text_.try_emplace(text.take(), meshes_.size());
  if (first) meshes_.push_back(mesh);
  return known->second = equal->second;
}

std::optional<std::uint64_t> MeshTable::rank_outside(std::size_t group, std::size_t mesh) {
  const auto [known, fresh] = outside_.try_emplace({group, mesh});
  if (!fresh) return known->second;
  for (const std::uint64_t rank : groups_[group].ranks) {
    if (!meshes_[mesh]->position_of(rank)) return known->second = rank;
  }
  return std::nullopt;
}

}  // namespace infercluster::checkpoint
