// SPDX-License-Identifier: Apache-2.0
// What a rank says of its pieces: is it in order, and how it travels.
#include <algorithm>
#include <memory>

#include "checkpoint/plan.h"
#include "checksum/sha256.h"
#include "exchange/wire.h"
#include "safetensors/header.h"

namespace infercluster::checkpoint {
namespace {

constexpr std::uint64_t kDimensionsMax = 64;

Error refused(const Piece& piece, std::string message) {
  return Error(ErrorCode::invalid_argument, std::move(message)).with_tensor(piece.tensor);
}

bool is_empty(const Box& box) {
  return std::find(box.lengths.begin(), box.lengths.end(), 0U) != box.lengths.end();
}

void put(exchange::Writer& out, const std::vector<std::uint64_t>& numbers) {
  for (const std::uint64_t number : numbers) out.number(number);
}

std::vector<std::uint64_t> get(exchange::Reader& in, std::uint64_t count) {
  std::vector<std::uint64_t> numbers(count);
  for (std::uint64_t& number : numbers) number = in.number();
  return numbers;
}

// The different meshes of pieces, in the order in which they come. They are few.
class Meshes {
 public:
  std::uint64_t number_of(const Mesh& mesh) {
    if (!meshes_.empty() && meshes_[last_] == &mesh) return last_;
    for (last_ = 0; last_ < meshes_.size(); ++last_) {
      if (meshes_[last_] == &mesh || *meshes_[last_] == mesh) return last_;
    }
    meshes_.push_back(&mesh);
    return last_;
  }
  [[nodiscard]] const std::vector<const Mesh*>& all() const { return meshes_; }

 private:
  std::vector<const Mesh*> meshes_;
  std::size_t last_ = 0;
};

Error damaged() {
  return Error(ErrorCode::corrupt, "the list of a rank's tensors is damaged")
      .with_hint("Do all ranks run the same version?");
}

Result<Piece> decode_piece(exchange::Reader& in, const std::vector<std::shared_ptr<const Mesh>>& meshes) {
  Piece piece;
  piece.tensor = in.text();
  const std::uint64_t dtype = in.number();
  const std::uint64_t dimensions = in.number();
  if (in.failed() || dtype >= safetensors::kDtypeCount || dimensions > kDimensionsMax) return damaged();
  piece.dtype = static_cast<safetensors::Dtype>(dtype);
  piece.shape = get(in, dimensions);
  piece.sole = in.number() == 1;
  const std::uint64_t mesh = in.number();
  if (mesh == 0) {
    piece.box.offsets = get(in, dimensions);
    piece.box.lengths = get(in, dimensions);
    return piece;
  }
  const std::uint64_t cuts = in.number();
  if (in.failed() || mesh > meshes.size() || cuts > kDimensionsMax) return damaged();
  piece.sharding = Sharding{meshes[mesh - 1], {}};
  for (std::uint64_t i = 0; i < cuts; ++i) {
    const std::uint64_t mesh_dimension = in.number();
    piece.sharding->cuts.push_back({mesh_dimension, in.number()});
  }
  return piece;
}

}  // namespace

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
  if (piece.sharding) {
    const Status fits = check_sharding(*piece.sharding, piece.shape);
    if (!fits.ok()) return refused(piece, fits.error().message());
  }
  return *bytes;
}

Status check_held(const Pieces& pieces, std::uint64_t rank) {
  for (const Piece& piece : pieces) {
    IC_CHECK(check_piece(piece));
    if (!piece.sharding) continue;
    const auto position = piece.sharding->mesh->position_of(rank);
    if (!position)
      return refused(piece, "rank " + std::to_string(rank) + " holds it, and is not in the mesh of its placement");
    const Box box = shard_box(*piece.sharding, piece.shape, *position);
    if (box == piece.box || (is_empty(box) && is_empty(piece.box))) continue;
    return refused(piece, "rank " + std::to_string(rank) + " holds the box " + to_string(piece.box) +
                              ", and by its placement it would be " + to_string(box))
        .with_hint("Give the piece without a placement, or the placement that it has");
  }
  return {};
}

std::string encode_pieces(const Pieces& pieces) {
  Meshes meshes;
  exchange::Writer list;
  list.number(pieces.size());
  for (const Piece& piece : pieces) {
    list.text(piece.tensor);
    list.number(static_cast<std::uint64_t>(piece.dtype));
    list.number(piece.shape.size());
    put(list, piece.shape);
    list.number(piece.sole ? 1 : 0);
    if (!piece.sharding) {
      list.number(0);
      put(list, piece.box.offsets);
      put(list, piece.box.lengths);
      continue;
    }
    list.number(1 + meshes.number_of(*piece.sharding->mesh));
    list.number(piece.sharding->cuts.size());
    for (const Cut& cut : piece.sharding->cuts) {
      list.number(cut.mesh_dimension);
      list.number(cut.tensor_dimension);
    }
  }
  exchange::Writer out;
  out.number(meshes.all().size());
  for (const Mesh* mesh : meshes.all()) mesh->encode(out);
  return out.take() + list.take();
}

Result<Pieces> decode_pieces(std::string_view bytes) {
  exchange::Reader in(bytes);
  const std::uint64_t mesh_count = in.number();
  if (mesh_count > bytes.size()) return damaged();
  std::vector<std::shared_ptr<const Mesh>> meshes;
  for (std::uint64_t i = 0; i < mesh_count; ++i) {
    IC_TRY(Mesh mesh, Mesh::decode(in));
    meshes.push_back(std::make_shared<const Mesh>(std::move(mesh)));
  }
  const std::uint64_t count = in.number();
  if (count > bytes.size()) return damaged();
  Pieces pieces;
  for (std::uint64_t i = 0; i < count && !in.failed(); ++i) {
    IC_TRY(Piece piece, decode_piece(in, meshes));
    pieces.push_back(std::move(piece));
  }
  if (!in.complete()) return damaged();
  return pieces;
}

std::string digest_of(std::string_view encoded_pieces) {
  checksum::Sha256 sha;
  sha.add(std::as_bytes(std::span(encoded_pieces)));
  return sha.finish_hex().substr(0, 32);
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
