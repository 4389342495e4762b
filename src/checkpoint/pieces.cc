// SPDX-License-Identifier: Apache-2.0
// Pieces as bytes, for the way between ranks.
#include "checkpoint/plan.h"
#include "exchange/wire.h"

namespace infercluster::checkpoint {
namespace {

constexpr std::uint64_t kDimensionsMax = 64;

void put(exchange::Writer& out, const std::vector<std::uint64_t>& numbers) {
  for (const std::uint64_t number : numbers) out.number(number);
}

std::vector<std::uint64_t> get(exchange::Reader& in, std::uint64_t count) {
  std::vector<std::uint64_t> numbers(count);
  for (std::uint64_t& number : numbers) number = in.number();
  return numbers;
}

}  // namespace

std::string encode_pieces(const Pieces& pieces) {
  exchange::Writer out;
  out.number(pieces.size());
  for (const Piece& piece : pieces) {
    out.text(piece.tensor);
    out.number(static_cast<std::uint64_t>(piece.dtype));
    out.number(piece.shape.size());
    put(out, piece.shape);
    put(out, piece.box.offsets);
    put(out, piece.box.lengths);
  }
  return out.take();
}

Result<Pieces> decode_pieces(std::string_view bytes) {
  exchange::Reader in(bytes);
  const auto odd = [] { return Error(ErrorCode::corrupt, "the list of a rank's tensors is damaged"); };
  const std::uint64_t count = in.number();
  if (count > bytes.size()) return odd();
  Pieces pieces;
  for (std::uint64_t i = 0; i < count && !in.failed(); ++i) {
    Piece piece;
    piece.tensor = in.text();
    const std::uint64_t dtype = in.number();
    const std::uint64_t dimensions = in.number();
    if (in.failed() || dtype >= safetensors::kDtypeCount || dimensions > kDimensionsMax) return odd();
    piece.dtype = static_cast<safetensors::Dtype>(dtype);
    piece.shape = get(in, dimensions);
    piece.box.offsets = get(in, dimensions);
    piece.box.lengths = get(in, dimensions);
    pieces.push_back(std::move(piece));
  }
  if (!in.complete()) return odd();
  return pieces;
}

}  // namespace infercluster::checkpoint
