// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/mesh.h"

#include <algorithm>
#include <string>

#include "exchange/exchange.h"

namespace infercluster::checkpoint {
namespace {

constexpr std::size_t kDimensionsMax = 16;
constexpr auto kRanksMax = static_cast<std::uint64_t>(exchange::kRanksMax);

Error refused(std::string message) {
  return Error(ErrorCode::invalid_argument, "a mesh of ranks " + std::move(message));
}

Result<std::uint64_t> size_of(const std::vector<std::uint64_t>& shape) {
  if (shape.size() > kDimensionsMax) return refused("has more than 16 dimensions");
  std::uint64_t size = 1;
  for (const std::uint64_t length : shape) {
    if (length == 0 || length > kRanksMax / size)
      return refused("has no ranks, or more than " + std::to_string(kRanksMax));
    size *= length;
  }
  return size;
}

// Where the coordinates, in steps of the strides, lead from the first rank.
std::uint64_t reach(const std::vector<std::uint64_t>& shape, const std::vector<std::uint64_t>& strides,
                    std::uint64_t position) {
  std::uint64_t sum = 0;
  for (std::size_t d = shape.size(); d-- > 0;) {
    sum += position % shape[d] * strides[d];
    position /= shape[d];
  }
  return sum;
}

// The strides that the ranks at the first step of each dimension suggest; nothing where that is backwards.
std::optional<std::vector<std::uint64_t>> strides_of(const std::vector<std::uint64_t>& shape,
                                                     const std::vector<std::uint64_t>& ranks) {
  std::vector<std::uint64_t> strides(shape.size());
  std::uint64_t step = 1;  // in positions
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (shape[d] > 1) {
      if (ranks[step] <= ranks[0]) return std::nullopt;
      strides[d] = ranks[step] - ranks[0];
    }
    step *= shape[d];
  }
  for (std::uint64_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] != ranks[0] + reach(shape, strides, i)) return std::nullopt;
  }
  return strides;
}

std::vector<std::size_t> order_of(const std::vector<std::uint64_t>& shape, const std::vector<std::uint64_t>& strides) {
  std::vector<std::size_t> order;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] > 1) order.push_back(d);
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return strides[a] > strides[b]; });
  return order;
}

// Whether a rank can be taken apart into coordinates, the largest stride first.
bool is_nested(const std::vector<std::uint64_t>& shape, const std::vector<std::uint64_t>& strides,
               const std::vector<std::size_t>& order) {
  std::uint64_t inner = 0;  // how far the smaller strides reach
  for (std::size_t i = order.size(); i-- > 0;) {
    const std::size_t d = order[i];
    if (strides[d] <= inner) return false;
    inner += (shape[d] - 1) * strides[d];
  }
  return true;
}

}  // namespace

Result<Mesh> Mesh::of(std::vector<std::uint64_t> shape, std::vector<std::uint64_t> ranks) {
  IC_TRY(const std::uint64_t size, size_of(shape));
  if (ranks.size() != size)
    return refused("needs " + std::to_string(size) + " by its shape, and " + std::to_string(ranks.size()) +
                   " are given");
  for (const std::uint64_t rank : ranks) {
    if (rank >= kRanksMax) return refused("has rank " + std::to_string(rank) + ", beyond what a job may have");
  }
  Mesh mesh;
  mesh.size_ = size;
  mesh.shape_ = std::move(shape);
  if (auto strides = strides_of(mesh.shape_, ranks)) {
    std::vector<std::size_t> order = order_of(mesh.shape_, *strides);
    if (is_nested(mesh.shape_, *strides, order)) {
      mesh.first_ = ranks[0];
      mesh.strides_ = *std::move(strides);
      mesh.by_stride_ = std::move(order);
      return mesh;
    }
  }
  for (std::uint64_t i = 0; i < size; ++i) mesh.positions_.emplace_back(ranks[i], i);
  std::sort(mesh.positions_.begin(), mesh.positions_.end());
  for (std::size_t i = 1; i < mesh.positions_.size(); ++i) {
    if (mesh.positions_[i].first == mesh.positions_[i - 1].first)
      return refused("has rank " + std::to_string(mesh.positions_[i].first) + " twice");
  }
  mesh.ranks_ = std::move(ranks);
  return mesh;
}

Result<Mesh> Mesh::regular(std::vector<std::uint64_t> shape, std::uint64_t first, std::vector<std::uint64_t> strides) {
  IC_TRY(const std::uint64_t size, size_of(shape));
  if (strides.size() != shape.size()) return refused("has another number of strides than dimensions");
  if (first >= kRanksMax) return refused("begins beyond what a job may have");
  std::uint64_t last = first;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) strides[d] = 0;
    if (strides[d] >= kRanksMax) return refused("reaches beyond what a job may have");
    last += (shape[d] - 1) * strides[d];
  }
  if (last >= kRanksMax) return refused("reaches beyond what a job may have");
  std::vector<std::size_t> order = order_of(shape, strides);
  if (!is_nested(shape, strides, order)) {
    std::vector<std::uint64_t> ranks(size);
    for (std::uint64_t i = 0; i < size; ++i) ranks[i] = first + reach(shape, strides, i);
    return of(std::move(shape), std::move(ranks));
  }
  Mesh mesh;
  mesh.size_ = size;
  mesh.shape_ = std::move(shape);
  mesh.first_ = first;
  mesh.strides_ = std::move(strides);
  mesh.by_stride_ = std::move(order);
  return mesh;
}

std::uint64_t Mesh::rank_at(std::uint64_t position) const {
  return ranks_.empty() ? first_ + reach(shape_, strides_, position) : ranks_[position];
}

std::optional<std::uint64_t> Mesh::position_of(std::uint64_t rank) const {
  if (!ranks_.empty()) {
    const auto found = std::lower_bound(positions_.begin(), positions_.end(), std::pair{rank, std::uint64_t{0}});
    if (found == positions_.end() || found->first != rank) return std::nullopt;
    return found->second;
  }
  if (rank < first_) return std::nullopt;
  std::uint64_t rest = rank - first_;
  std::uint64_t position = 0;
  std::vector<std::uint64_t> coordinates(shape_.size());
  for (const std::size_t d : by_stride_) {
    coordinates[d] = rest / strides_[d];
    if (coordinates[d] >= shape_[d]) return std::nullopt;
    rest -= coordinates[d] * strides_[d];
  }
  if (rest != 0) return std::nullopt;
  for (std::size_t d = 0; d < shape_.size(); ++d) position = position * shape_[d] + coordinates[d];
  return position;
}

void Mesh::encode(exchange::Writer& out) const {
  out.number(shape_.size());
  for (const std::uint64_t length : shape_) out.number(length);
  out.number(ranks_.size());  // 0: regular
  if (ranks_.empty()) out.number(first_);
  for (const std::uint64_t number : ranks_.empty() ? strides_ : ranks_) out.number(number);
}

Result<Mesh> Mesh::decode(exchange::Reader& in) {
  const auto odd = [] { return Error(ErrorCode::corrupt, "a mesh of ranks that another rank gave is damaged"); };
  const auto numbers = [&in](std::uint64_t count) {
    std::vector<std::uint64_t> list(count);
    for (std::uint64_t& number : list) number = in.number();
    return list;
  };
  const std::uint64_t dimensions = in.number();
  if (in.failed() || dimensions > kDimensionsMax) return odd();
  std::vector<std::uint64_t> shape = numbers(dimensions);
  const std::uint64_t listed = in.number();
  if (in.failed() || listed > kRanksMax) return odd();
  if (listed > 0) {
    std::vector<std::uint64_t> ranks = numbers(listed);
    return in.failed() ? Result<Mesh>(odd()) : of(std::move(shape), std::move(ranks));
  }
  const std::uint64_t first = in.number();
  std::vector<std::uint64_t> strides = numbers(dimensions);
  return in.failed() ? Result<Mesh>(odd()) : regular(std::move(shape), first, std::move(strides));
}

}  // namespace infercluster::checkpoint
