// SPDX-License-Identifier: Apache-2.0
// The different meshes that groups of ranks speak of, by number. Pure.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "checkpoint/plan.h"

namespace infercluster::checkpoint {

class MeshTable {
 public:
  // `groups` outlive the table.
  explicit MeshTable(std::span<const Group> groups) : groups_(groups) {}

  // Equal meshes have one number. `mesh` outlives the table.
  std::size_t number_of(const Mesh* mesh);
  [[nodiscard]] std::size_t size() const { return meshes_.size(); }
  [[nodiscard]] const Mesh& at(std::size_t number) const { return *meshes_[number]; }

  // A rank of the group that is not in the mesh.
  std::optional<std::uint64_t> rank_outside(std::size_t group, std::size_t mesh);

 private:
  const std::span<const Group> groups_;
  std::vector<const Mesh*> meshes_;
  std::unordered_map<const Mesh*, std::size_t> numbers_;
  std::unordered_map<std::string, std::size_t> by_text_;
  std::map<std::pair<std::size_t, std::size_t>, std::optional<std::uint64_t>> outside_;  // of group and mesh
};

}  // namespace infercluster::checkpoint
