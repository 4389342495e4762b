// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/plan.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <unordered_map>

#include "checkpoint/cover.h"
#include "checkpoint/least_loaded.h"
#include "checkpoint/mesh_table.h"
#include "checksum/sha256.h"
#include "safetensors/header.h"

namespace infercluster::checkpoint {
namespace {

constexpr std::size_t kShownMax = 4;  // boxes, ranks in one message

struct Entry {
  std::size_t group = 0;
  std::size_t piece = 0;
};

// One box of one tensor, and who holds it.
struct Shared {
  const Piece* piece = nullptr;
  std::uint64_t bytes = 0;
  std::vector<Entry> holders;  // by group
};

// A tensor as one placement spreads it over its mesh.
struct Copy {
  const Sharding* sharding = nullptr;
  std::size_t mesh = 0;     // of MeshTable
  std::uint64_t ranks = 0;  // of those groups
  std::vector<Entry> holders;
};

struct Tensor {
  const Piece* first = nullptr;
  std::size_t first_group = 0;
  // Without placements:
  std::vector<std::size_t> shared;                     // of Planner::shared_
  std::unordered_map<std::string, std::size_t> boxes;  // key of a box -> of Planner::shared_
  std::optional<Entry> empty;                          // the first piece without elements
  // With:
  std::vector<Copy> copies;
};

Error refused(const Piece& piece, std::string message) {
  return Error(ErrorCode::invalid_argument, std::move(message)).with_tensor(piece.tensor);
}

bool is_empty(const Box& box) {
  return std::find(box.lengths.begin(), box.lengths.end(), 0U) != box.lengths.end();
}

std::string key_of(const Box& box) {
  std::string key;
  key.reserve(box.offsets.size() * 16);
  for (const auto* numbers : {&box.offsets, &box.lengths}) {
    key.append(reinterpret_cast<const char*>(numbers->data()), numbers->size() * sizeof(std::uint64_t));
  }
  return key;
}

std::string rank_text(const Group& group) {
  return "rank " + std::to_string(group.ranks.front());
}

class Planner {
 public:
  Planner(std::span<const Group> groups, std::uint64_t world) : groups_(groups), world_(world), meshes_(groups) {
    for (const Group& group : groups) plan_.writers.emplace_back(group.pieces.size(), kElsewhere);
  }

  Result<Plan> run() {
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      for (std::size_t i = 0; i < groups_[group].pieces.size(); ++i) IC_CHECK(add({group, i}));
    }
    for (const std::string* name : order_) {
      Tensor& tensor = tensors_.at(*name);
      IC_CHECK(tensor.copies.empty() ? check_cover(tensor) : check_copies(tensor));
    }
    choose_copies();
    assign();
    plan_.hash = hash();
    return std::move(plan_);
  }

 private:
  [[nodiscard]] const Piece& at(const Entry& entry) const { return groups_[entry.group].pieces[entry.piece]; }

  Status add(const Entry& entry) {
    const Piece& piece = at(entry);
    const auto [place, fresh] = tensors_.try_emplace(piece.tensor);
    Tensor& tensor = place->second;
    if (fresh) {
      order_.push_back(&place->first);
      tensor.first = &piece;
      tensor.first_group = entry.group;
    } else {
      const std::string both =
          rank_text(groups_[tensor.first_group]) + " and " + rank_text(groups_[entry.group]) + " hold it ";
      if (piece.dtype != tensor.first->dtype || piece.shape != tensor.first->shape)
        return refused(piece, both + "with different dtypes or shapes");
      if (piece.sharding.has_value() != tensor.first->sharding.has_value())
        return refused(piece, both + "with a placement and without one");
    }
    return piece.sharding ? add_placed(tensor, entry) : add_box(tensor, entry);
  }

  Status add_placed(Tensor& tensor, const Entry& entry) {
    const Piece& piece = at(entry);
    const Group& group = groups_[entry.group];
    IC_CHECK(check_placement(piece));
    const std::size_t mesh = meshes_.number_of(piece.sharding->mesh.get());
    if (const auto outside = meshes_.rank_outside(entry.group, mesh))
      return refused(piece, "rank " + std::to_string(*outside) + " holds it, and is not in the mesh of its placement");
    Copy* its = nullptr;
    for (Copy& copy : tensor.copies) {
      if (copy.holders.back().group == entry.group) return refused(piece, rank_text(group) + " names it twice");
      if (copy.mesh == mesh && copy.sharding->cuts == piece.sharding->cuts) its = &copy;
    }
    if (its == nullptr) its = &tensor.copies.emplace_back(Copy{&*piece.sharding, mesh, 0, {}});
    its->ranks += group.ranks.size();
    its->holders.push_back(entry);
    return {};
  }

  static Status check_placement(const Piece& piece) {
    const auto whole = safetensors::tensor_bytes(piece.dtype, piece.shape);
    if (!whole.ok()) return refused(piece, whole.error().message());
    const Status fits = check_sharding(*piece.sharding, piece.shape);
    return fits.ok() ? Status() : Status(refused(piece, fits.error().message()));
  }

  Status add_box(Tensor& tensor, const Entry& entry) {
    const Piece& piece = at(entry);
    IC_TRY(const std::uint64_t bytes, check_piece(piece));
    if (is_empty(piece.box)) {
      if (!tensor.empty) tensor.empty = entry;
      return {};
    }
    const auto [box, new_box] = tensor.boxes.try_emplace(key_of(piece.box), shared_.size());
    if (new_box) {
      tensor.shared.push_back(shared_.size());
      shared_.push_back({&piece, bytes, {}});
    }
    std::vector<Entry>& holders = shared_[box->second].holders;
    if (!holders.empty() && holders.back().group == entry.group)
      return refused(piece, rank_text(groups_[entry.group]) + " names it twice");
    if (piece.sole) IC_CHECK(check_sole(piece, holders, groups_[entry.group]));
    holders.push_back(entry);
    return {};
  }

  [[nodiscard]] Status check_sole(const Piece& piece, const std::vector<Entry>& holders, const Group& group) const {
    if (holders.empty() && group.ranks.size() == 1) return {};
    const std::uint64_t other = holders.empty() ? group.ranks[1] : groups_[holders.front().group].ranks.front();
    return refused(piece, rank_text(group) + " and rank " + std::to_string(other) +
                              " both hold it, and what they hold changes by itself")
        .with_hint("Give it from one rank alone, under names of each rank's own, or as parts of it");
  }

  Status check_cover(Tensor& tensor) {
    std::vector<const Box*> boxes;
    boxes.reserve(tensor.shared.size());
    for (const std::size_t i : tensor.shared) boxes.push_back(&shared_[i].piece->box);
    tensor.boxes.clear();
    if (const auto flaw = find_flaw(tensor.first->shape, boxes))
      return refused(*tensor.first, flaw->text + holders_text(tensor, flaw->overlapping));
    // A tensor without elements is written once, by the first who named it, so that its name comes back.
    if (boxes.empty())
      plan_.writers[tensor.empty->group][tensor.empty->piece] = groups_[tensor.empty->group].ranks.front();
    return {};
  }

  // " (rank 0 holds [0:4, 0:2], ...)": of these boxes, or of the first where there are none.
  [[nodiscard]] std::string holders_text(const Tensor& tensor, const std::vector<const Box*>& boxes) const {
    std::string text;
    std::size_t shown = 0;
    for (const std::size_t i : tensor.shared) {
      const Shared& shared = shared_[i];
      if (!boxes.empty() && std::find(boxes.begin(), boxes.end(), &shared.piece->box) == boxes.end()) continue;
      if (++shown > kShownMax) return " (" + text + ", ...)";
      text += (text.empty() ? "" : ", ") + rank_text(groups_[shared.holders.front().group]) + " holds " +
              to_string(shared.piece->box);
    }
    return text.empty() ? "" : " (" + text + ")";
  }

  // The boxes of a placement tile the tensor by themselves, so that it is enough that all ranks of its mesh hold it.
  Status check_copies(const Tensor& tensor) {
    for (const Copy& copy : tensor.copies) {
      const Mesh& mesh = *copy.sharding->mesh;
      if (copy.ranks == mesh.size()) continue;
      std::vector<std::uint64_t> there;
      for (const Entry& entry : copy.holders) {
        const auto& ranks = groups_[entry.group].ranks;
        there.insert(there.end(), ranks.begin(), ranks.end());
      }
      std::sort(there.begin(), there.end());
      std::string text;
      std::size_t shown = 0;
      for (std::uint64_t position = 0; position < mesh.size() && shown < kShownMax; ++position) {
        const std::uint64_t rank = mesh.rank_at(position);
        if (std::binary_search(there.begin(), there.end(), rank)) continue;
        text += (shown++ == 0 ? "" : ", ") + std::string("rank ") + std::to_string(rank) + " with " +
                to_string(shard_box(*copy.sharding, tensor.first->shape, position));
      }
      return refused(*tensor.first, std::to_string(mesh.size() - copy.ranks) + " of the " +
                                        std::to_string(mesh.size()) +
                                        " ranks in the mesh of its placement do not hold it that way: " + text)
          .with_hint("A job of " + std::to_string(world_) + " ranks saves together, each all that it holds");
    }
    return {};
  }

  // Of a tensor that several meshes hold, the mesh whose ranks have least to write writes its copy.
  void choose_copies() {
    std::vector<std::uint64_t> loads(meshes_.size());  // bytes per rank
    const auto bytes_of = [](const Tensor& tensor, const Copy& copy) {
      return *safetensors::tensor_bytes(tensor.first->dtype, tensor.first->shape) / copy.sharding->mesh->size();
    };
    const auto take = [&](const Tensor& tensor, const Copy& copy) {
      loads[copy.mesh] += bytes_of(tensor, copy);
      for (const Entry& entry : copy.holders) plan_.writers[entry.group][entry.piece] = kByPlacement;
    };
    std::vector<const Tensor*> several;
    for (const std::string* name : order_) {
      const Tensor& tensor = tensors_.at(*name);
      if (tensor.copies.size() == 1) take(tensor, tensor.copies.front());
      if (tensor.copies.size() > 1) several.push_back(&tensor);
    }
    for (const Tensor* tensor : several) {
      take(*tensor, *std::min_element(tensor->copies.begin(), tensor->copies.end(), [&](const Copy& a, const Copy& b) {
        return loads[a.mesh] + bytes_of(*tensor, a) < loads[b.mesh] + bytes_of(*tensor, b);
      }));
    }
    plan_.copies = several.size();
    if (!several.empty()) plan_.copy = several.front()->first->tensor;
    rank_loads_.assign(world_, 0);
    for (std::size_t mesh = 0; mesh < meshes_.size(); ++mesh) {
      if (loads[mesh] == 0) continue;
      for (std::uint64_t i = 0; i < meshes_.at(mesh).size(); ++i) {
        rank_loads_[meshes_.at(mesh).rank_at(i)] += loads[mesh];
      }
    }
  }

  // First what only one rank holds, since nothing is left to choose; then the largest first, each to the least loaded.
  void assign() {
    LeastLoaded least(groups_, std::move(rank_loads_));
    std::vector<const Shared*> choices;
    for (const Shared& shared : shared_) {
      const Entry& first = shared.holders.front();
      if (shared.holders.size() > 1 || groups_[first.group].ranks.size() > 1) {
        choices.push_back(&shared);
      } else {
        plan_.writers[first.group][first.piece] = groups_[first.group].ranks.front();
        least.add(groups_[first.group].ranks.front(), shared.bytes);
      }
    }
    std::stable_sort(choices.begin(), choices.end(),
                     [](const Shared* a, const Shared* b) { return a->bytes > b->bytes; });
    std::vector<std::size_t> groups;
    for (const Shared* shared : choices) {
      groups.clear();
      for (const Entry& entry : shared->holders) groups.push_back(entry.group);
      const LeastLoaded::Choice choice = least.choose(groups, shared->bytes);
      for (const Entry& entry : shared->holders) plan_.writers[entry.group][entry.piece] = choice.rank;
    }
  }

  [[nodiscard]] std::string hash() const {
    std::vector<const std::string*> digests(world_);
    for (const Group& group : groups_) {
      for (const std::uint64_t rank : group.ranks) digests[rank] = &group.digest;
    }
    checksum::Sha256 sha;
    for (const std::string* digest : digests) sha.add(std::as_bytes(std::span(*digest)));
    return sha.finish_hex().substr(0, 32);
  }

  const std::span<const Group> groups_;
  const std::uint64_t world_;
  MeshTable meshes_;
  std::unordered_map<std::string, Tensor> tensors_;
  std::vector<const std::string*> order_;  // of tensors_, as they came
  std::vector<Shared> shared_;
  std::vector<std::uint64_t> rank_loads_;  // bytes that placements give each rank, on the average
  Plan plan_;
};

}  // namespace

Result<Plan> plan_writes(std::span<const Group> groups, std::uint64_t world) {
  return Planner(groups, world).run();
}

}  // namespace infercluster::checkpoint
