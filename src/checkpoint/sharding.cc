// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/sharding.h"

#include <algorithm>
#include <string>

namespace infercluster::checkpoint {
namespace {

std::vector<std::uint64_t> coordinates_of(const Mesh& mesh, std::uint64_t position) {
  std::vector<std::uint64_t> coordinates(mesh.shape().size());
  for (std::size_t d = coordinates.size(); d-- > 0;) {
    coordinates[d] = position % mesh.shape()[d];
    position /= mesh.shape()[d];
  }
  return coordinates;
}

bool is_cut(const Sharding& sharding, std::size_t mesh_dimension) {
  return std::any_of(sharding.cuts.begin(), sharding.cuts.end(),
                     [=](const Cut& cut) { return cut.mesh_dimension == mesh_dimension; });
}

}  // namespace

Status check_sharding(const Sharding& sharding, const std::vector<std::uint64_t>& shape) {
  const std::size_t dimensions = sharding.mesh->shape().size();
  std::vector<bool> used(dimensions);
  for (const Cut& cut : sharding.cuts) {
    if (cut.mesh_dimension >= dimensions || cut.tensor_dimension >= shape.size()) {
      return Error(ErrorCode::invalid_argument, "its placement cuts dimension " + std::to_string(cut.tensor_dimension) +
                                                    " of " + std::to_string(shape.size()) + " along dimension " +
                                                    std::to_string(cut.mesh_dimension) + " of a mesh of " +
                                                    std::to_string(dimensions));
    }
    if (used[cut.mesh_dimension])
      return Error(ErrorCode::invalid_argument,
                   "its placement cuts twice along dimension " + std::to_string(cut.mesh_dimension) + " of the mesh");
    used[cut.mesh_dimension] = true;
  }
  return {};
}

manifest::Box shard_box(const Sharding& sharding, const std::vector<std::uint64_t>& shape, std::uint64_t position) {
  const std::vector<std::uint64_t> coordinates = coordinates_of(*sharding.mesh, position);
  manifest::Box box = manifest::whole_box(shape);
  for (const Cut& cut : sharding.cuts) {
    std::uint64_t& length = box.lengths[cut.tensor_dimension];
    const std::uint64_t parts = sharding.mesh->shape()[cut.mesh_dimension];
    const std::uint64_t rows = length / parts + (length % parts != 0 ? 1 : 0);
    const std::uint64_t part = coordinates[cut.mesh_dimension];
    const std::uint64_t begin = rows == 0 || part <= length / rows ? part * rows : length;
    box.offsets[cut.tensor_dimension] += begin;
    length = std::min(rows, length - begin);
  }
  return box;
}

Replica replica_at(const Sharding& sharding, std::uint64_t position) {
  const std::vector<std::uint64_t>& shape = sharding.mesh->shape();
  const std::vector<std::uint64_t> coordinates = coordinates_of(*sharding.mesh, position);
  Replica replica;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (is_cut(sharding, d)) continue;
    replica.count *= shape[d];
    replica.number = replica.number * shape[d] + coordinates[d];
  }
  return replica;
}

std::uint64_t position_of_replica(const Sharding& sharding, std::uint64_t position, std::uint64_t number) {
  const std::vector<std::uint64_t>& shape = sharding.mesh->shape();
  std::vector<std::uint64_t> coordinates = coordinates_of(*sharding.mesh, position);
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (is_cut(sharding, d)) continue;
    coordinates[d] = number % shape[d];
    number /= shape[d];
  }
  std::uint64_t found = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) found = found * shape[d] + coordinates[d];
  return found;
}

}  // namespace infercluster::checkpoint
