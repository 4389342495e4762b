// SPDX-License-Identifier: Apache-2.0
// How a tensor is spread over the ranks of a mesh: torch's device mesh and placements. The box of any rank is then a
// pure function, which no rank needs to be told.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "checkpoint/mesh.h"
#include "manifest/index.h"

namespace infercluster::checkpoint {

// Along a dimension of the mesh, a dimension of the tensor is cut: torch's Shard.
struct Cut {
  std::uint64_t mesh_dimension = 0;
  std::uint64_t tensor_dimension = 0;

  friend bool operator==(const Cut&, const Cut&) = default;
};

struct Sharding {
  std::shared_ptr<const Mesh> mesh;  // never null; one for all tensors on it is best
  // In the order in which they are made: a later one cuts what an earlier one left. torch's order is that of the mesh,
  // but FSDP over tensor parallelism (_StridedShard) cuts along the later dimension first. Each dimension of the mesh
  // once at most; along those that are not named the tensor is replicated (torch's Replicate).
  std::vector<Cut> cuts;

  friend bool operator==(const Sharding& a, const Sharding& b) {
    return (a.mesh == b.mesh || *a.mesh == *b.mesh) && a.cuts == b.cuts;
  }
};

// Errors (invalid_argument): dimensions that are not there, one of the mesh twice.
Status check_sharding(const Sharding& sharding, const std::vector<std::uint64_t>& shape);

// What the rank at this position of the mesh holds of a tensor of this shape: of n rows over k ranks each has
// ceil(n / k), until none are left. A box without rows begins behind the last one.
manifest::Box shard_box(const Sharding& sharding, const std::vector<std::uint64_t>& shape, std::uint64_t position);

// Ranks of the mesh hold the same box where they differ in nothing but dimensions without a cut. Their number, and
// which of them this one is, row-major over those dimensions.
struct Replica {
  std::uint64_t count = 1;
  std::uint64_t number = 0;
};
Replica replica_at(const Sharding& sharding, std::uint64_t position);
// The position in the mesh of the replica with this number that holds the box of `position`.
std::uint64_t position_of_replica(const Sharding& sharding, std::uint64_t position, std::uint64_t number);

}  // namespace infercluster::checkpoint
