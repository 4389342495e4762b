// SPDX-License-Identifier: Apache-2.0
// Which of its pieces a rank writes, and who the others. All ranks of a mesh hold the same placed tensors, so each can
// compute for itself whose turn each of them is, as long as it looks at nothing that only it knows.
#include <algorithm>
#include <queue>
#include <set>

#include "checkpoint/plan.h"
#include "safetensors/dtype.h"

namespace infercluster::checkpoint {
namespace {

// Tensors on one mesh that are replicated along the same of its dimensions: each box has `replicas` holders.
struct Class {
  const Mesh* mesh = nullptr;
  std::uint64_t cut = 0;  // bit d: dimension d of the mesh has a cut
  Replica replica;
  struct Turn {
    std::uint64_t bytes = 0;  // of the largest box, which is the first
    std::size_t piece = 0;
  };
  std::vector<Turn> turns;
};

std::uint64_t cut_of(const Sharding& sharding) {
  std::uint64_t bits = 0;
  for (const Cut& cut : sharding.cuts) bits |= std::uint64_t{1} << cut.mesh_dimension;
  return bits;
}

std::uint64_t volume_of(const std::vector<std::uint64_t>& lengths) {
  std::uint64_t volume = 1;
  for (const std::uint64_t length : lengths) volume *= length;  // within a checked shape: cannot wrap
  return volume;
}

class Classes {
 public:
  explicit Classes(std::uint64_t rank) : rank_(rank) {}

  Class& of(const Sharding& sharding) {
    const std::uint64_t cut = cut_of(sharding);
    if (last_ < all_.size() && is(all_[last_], sharding, cut)) return all_[last_];
    for (last_ = 0; last_ < all_.size(); ++last_) {
      if (is(all_[last_], sharding, cut)) return all_[last_];
    }
    const std::uint64_t position = sharding.mesh->position_of(rank_).value();  // by check_held()
    return all_.emplace_back(Class{sharding.mesh.get(), cut, replica_at(sharding, position), {}});
  }
  [[nodiscard]] std::vector<Class>& all() { return all_; }

 private:
  static bool is(const Class& its, const Sharding& sharding, std::uint64_t cut) {
    return its.cut == cut && (its.mesh == sharding.mesh.get() || *its.mesh == *sharding.mesh);
  }

  const std::uint64_t rank_;
  std::vector<Class> all_;
  std::size_t last_ = 0;
};

// The largest first, each to the replica with the least, and to the last of several: uneven cuts leave the last ranks
// less. The ranks whose turn it is go into `writers`.
void take_turns(Class& its, const Pieces& pieces, std::uint64_t rank, Writers& writers) {
  std::sort(its.turns.begin(), its.turns.end(), [&](const Class::Turn& a, const Class::Turn& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : pieces[a.piece].tensor < pieces[b.piece].tensor;
  });
  struct Candidate {
    std::uint64_t load = 0;
    std::uint64_t number = 0;
    bool operator>(const Candidate& other) const {
      return load != other.load ? load > other.load : number < other.number;
    }
  };
  // Fewer turns than replicas: only so many have one.
  const std::uint64_t used = std::min<std::uint64_t>(its.replica.count, its.turns.size());
  std::vector<Candidate> all;
  for (std::uint64_t i = 0; i < used; ++i) all.push_back({0, its.replica.count - 1 - i});
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> least(std::greater<>(), std::move(all));
  const std::uint64_t position = its.mesh->position_of(rank).value();
  for (const Class::Turn& turn : its.turns) {
    Candidate next = least.top();
    least.pop();
    const Sharding& sharding = *pieces[turn.piece].sharding;
    writers[turn.piece] = next.number == its.replica.number
                              ? rank
                              : its.mesh->rank_at(position_of_replica(sharding, position, next.number));
    next.load += turn.bytes;
    least.push(next);
  }
}

bool is_empty(const Box& box) {
  return std::find(box.lengths.begin(), box.lengths.end(), 0U) != box.lengths.end();
}

}  // namespace

OwnShare own_share(const Pieces& pieces, std::uint64_t rank, const Writers& writers) {
  Writers who = writers;  // without kByPlacement
  Classes classes(rank);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    if (who[i] != kByPlacement) continue;
    if (volume_of(piece.shape) == 0) {  // once, so that its name comes back
      who[i] = piece.sharding->mesh->rank_at(0);
      continue;
    }
    Class& its = classes.of(*piece.sharding);
    if (its.replica.count == 1) {
      who[i] = rank;
      continue;
    }
    const std::uint64_t elements = volume_of(shard_box(*piece.sharding, piece.shape, 0).lengths);
    its.turns.push_back(
        {elements / 8 * safetensors::bits_of(piece.dtype) + elements % 8 * safetensors::bits_of(piece.dtype) / 8, i});
  }
  for (Class& its : classes.all()) take_turns(its, pieces, rank, who);
  OwnShare own;
  std::set<std::uint64_t> sources{rank};
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (volume_of(pieces[i].shape) != 0 && is_empty(pieces[i].box)) continue;
    if (who[i] == rank) own.writes.push_back(i);
    sources.insert(who[i]);
  }
  if (!sources.contains(kElsewhere)) own.sources.emplace(sources.begin(), sources.end());
  return own;
}

}  // namespace infercluster::checkpoint
