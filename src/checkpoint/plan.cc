// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/plan.h"

#include <algorithm>
#include <map>
#include <span>
#include <unordered_map>

#include "checkpoint/cover.h"
#include "checksum/sha256.h"
#include "safetensors/header.h"

namespace infercluster::checkpoint {
namespace {

struct Holder {
  std::size_t rank = 0;
  std::size_t piece = 0;
};

// One box of one tensor, and who holds it.
struct Shared {
  const Piece* piece = nullptr;
  std::uint64_t bytes = 0;
  std::vector<Holder> holders;  // by rank
};

struct Tensor {
  const Piece* first = nullptr;
  std::size_t first_rank = 0;
  std::vector<std::size_t> shared;                     // of Planner::shared_
  std::unordered_map<std::string, std::size_t> boxes;  // key of a box -> of Planner::shared_
  std::optional<Holder> empty;                         // the first piece without elements
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

class Planner {
 public:
  explicit Planner(std::span<const Pieces> ranks) : ranks_(ranks) {
    plan_.writes.resize(ranks.size());
    plan_.bytes.resize(ranks.size());
  }

  Result<Plan> run() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (std::size_t i = 0; i < ranks_[rank].size(); ++i) IC_CHECK(add({rank, i}));
    }
    for (const std::string* name : order_) IC_CHECK(check_cover(tensors_.at(*name)));
    assign();
    for (auto& writes : plan_.writes) std::sort(writes.begin(), writes.end());
    plan_.hash = hash();
    return std::move(plan_);
  }

 private:
  Status add(const Holder& holder) {
    const Piece& piece = ranks_[holder.rank][holder.piece];
    IC_TRY(const std::uint64_t bytes, check_piece(piece));
    const auto [place, fresh] = tensors_.try_emplace(piece.tensor);
    Tensor& tensor = place->second;
    if (fresh) {
      order_.push_back(&place->first);
      tensor.first = &piece;
      tensor.first_rank = holder.rank;
    } else if (piece.dtype != tensor.first->dtype || piece.shape != tensor.first->shape) {
      return refused(piece, "rank " + std::to_string(tensor.first_rank) + " and rank " + std::to_string(holder.rank) +
                                " hold it with different dtypes or shapes");
    }
    if (is_empty(piece.box)) {
      if (!tensor.empty) tensor.empty = holder;
      return {};
    }
    const auto [box, new_box] = tensor.boxes.try_emplace(key_of(piece.box), shared_.size());
    if (new_box) {
      tensor.shared.push_back(shared_.size());
      shared_.push_back({&piece, bytes, {}});
    }
    std::vector<Holder>& holders = shared_[box->second].holders;
    if (!holders.empty() && holders.back().rank == holder.rank)
      return refused(piece, "rank " + std::to_string(holder.rank) + " names it twice");
    holders.push_back(holder);
    return {};
  }

  Status check_cover(Tensor& tensor) {
    std::vector<const Box*> boxes;
    boxes.reserve(tensor.shared.size());
    for (const std::size_t i : tensor.shared) boxes.push_back(&shared_[i].piece->box);
    tensor.boxes.clear();
    if (const auto flaw = find_flaw(tensor.first->shape, boxes)) return refused(*tensor.first, *flaw);
    // A tensor without elements is written once, by the first who named it, so that its name comes back.
    if (boxes.empty()) plan_.writes[tensor.empty->rank].push_back(tensor.empty->piece);
    return {};
  }

  // First what only one rank holds, since nothing is left to choose; then the largest first, each to the least loaded.
  void assign() {
    std::vector<const Shared*> choices;
    for (const Shared& shared : shared_) {
      if (shared.holders.size() == 1)
        give(shared, shared.holders.front());
      else
        choices.push_back(&shared);
    }
    std::stable_sort(choices.begin(), choices.end(),
                     [](const Shared* a, const Shared* b) { return a->bytes > b->bytes; });
    for (const Shared* shared : choices) {
      give(*shared,
           *std::min_element(shared->holders.begin(), shared->holders.end(), [this](const Holder& a, const Holder& b) {
             return plan_.bytes[a.rank] < plan_.bytes[b.rank];
           }));
    }
  }

  void give(const Shared& shared, const Holder& holder) {
    plan_.writes[holder.rank].push_back(holder.piece);
    plan_.bytes[holder.rank] += shared.bytes;
  }

  [[nodiscard]] std::string hash() const {
    checksum::Sha256 sha;
    for (const Pieces& pieces : ranks_) {
      const std::string text = encode_pieces(pieces);
      sha.add(std::as_bytes(std::span(text)));
    }
    return sha.finish_hex().substr(0, 32);
  }

  const std::span<const Pieces> ranks_;
  std::unordered_map<std::string, Tensor> tensors_;
  std::vector<const std::string*> order_;  // of tensors_, as they came
  std::vector<Shared> shared_;
  Plan plan_;
};

}  // namespace

Result<Plan> plan_writes(std::span<const Pieces> ranks) {
  return Planner(ranks).run();
}

Result<std::uint64_t> check_piece(const Piece& piece) {
  const std::size_t dimensions = piece.shape.size();
  if (piece.box.offsets.size() != dimensions || piece.box.lengths.size() != dimensions)
    return refused(piece, "its box has another number of dimensions than its shape");
  for (std::size_t d = 0; d < dimensions; ++d) {
    const std::uint64_t length = piece.box.lengths[d];
    if (length == 0) continue;  // wherever it begins
    if (piece.box.offsets[d] > piece.shape[d] || length > piece.shape[d] - piece.box.offsets[d])
      return refused(piece, "the box " + to_string(piece.box) + " reaches out of its shape");
  }
  const auto whole = safetensors::tensor_bytes(piece.dtype, piece.shape);
  if (!whole.ok()) return refused(piece, whole.error().message());
  const auto bytes = safetensors::tensor_bytes(piece.dtype, piece.box.lengths);
  if (!bytes.ok()) return refused(piece, bytes.error().message());
  return *bytes;
}

std::string to_string(const Box& box) {
  std::string text = "[";
  for (std::size_t d = 0; d < box.offsets.size(); ++d) {
    if (d > 0) text += ", ";
    text += std::to_string(box.offsets[d]) + ":" + std::to_string(box.offsets[d] + box.lengths[d]);
  }
  return text + "]";
}

}  // namespace infercluster::checkpoint
