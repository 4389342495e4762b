// SPDX-License-Identifier: Apache-2.0
#include "target/address_space.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/assert.h"

namespace infercluster::target {
namespace {

constexpr std::uint64_t kLastEdge = kSpaceBlocks - kEdgeBlocks;

bool in_edge(std::uint64_t block) {
  return block < kEdgeBlocks || block >= kLastEdge;
}

}  // namespace

Result<Mapping> AddressSpace::add(std::shared_ptr<const Object> object) {
  const std::uint64_t needed = object->blocks() + kGuardBlocks;
  const std::lock_guard lock(mutex_);
  if (next_block_ > kLastEdge || needed > kLastEdge - next_block_) {
    return Error(ErrorCode::too_large,
                 "the namespace has no addresses left for " + std::to_string(object->blocks()) + " blocks")
        .with_path(object->path())
        .with_hint("Start the target with a new state: its namespace then gets a new UUID and a fresh address space");
  }
  const std::uint64_t first = std::exchange(next_block_, next_block_ + needed);
  objects_.emplace(first, object);
  return Mapping{.first_block = first, .object = std::move(object)};
}

Status AddressSpace::restore(const Mapping& mapping) {
  const std::uint64_t blocks = mapping.object->blocks() + kGuardBlocks;
  const auto wrong = [&](std::string_view why) {
    return Error(ErrorCode::invalid_argument,
                 "an object cannot be at block " + std::to_string(mapping.first_block) + ": " + std::string(why))
        .with_path(mapping.object->path());
  };
  const std::lock_guard lock(mutex_);
  if (mapping.first_block < kEdgeBlocks || mapping.first_block > next_block_ ||
      blocks > next_block_ - mapping.first_block) {
    return wrong("that range was never given out");
  }
  const auto after = objects_.lower_bound(mapping.first_block);
  if (after != objects_.end() && after->first - mapping.first_block < blocks) return wrong("another object is there");
  if (after != objects_.begin()) {
    const auto& [first, object] = *std::prev(after);
    if (mapping.first_block - first < object->blocks() + kGuardBlocks) return wrong("another object is there");
  }
  objects_.emplace(mapping.first_block, mapping.object);
  return {};
}

bool AddressSpace::unmap(std::uint64_t first_block) {
  const std::lock_guard lock(mutex_);
  return objects_.erase(first_block) == 1;
}

std::optional<Pieces> AddressSpace::find(std::uint64_t first_block, std::uint32_t blocks) const {
  IC_ASSERT(blocks >= 1 && blocks <= kReadBlocksMax);
  if (first_block >= kSpaceBlocks || blocks > kSpaceBlocks - first_block) return std::nullopt;
  Pieces pieces;
  const auto push = [&](Piece piece) {
    IC_ASSERT(pieces.count < pieces.list.size());
    pieces.list[pieces.count++] = std::move(piece);
  };
  const std::shared_lock lock(mutex_);
  std::uint64_t block = first_block;
  std::uint32_t left = blocks;
  while (left > 0) {
    if (in_edge(block)) {
      const std::uint64_t end = block < kEdgeBlocks ? kEdgeBlocks : kSpaceBlocks;
      const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(left, end - block));
      push({.object = nullptr, .first_block = 0, .blocks = count});
      block += count;
      left -= count;
      continue;
    }
    auto at = objects_.upper_bound(block);
    if (at == objects_.begin()) return std::nullopt;
    --at;
    const auto& [first, object] = *at;
    const std::uint64_t within = block - first;
    if (within >= object->blocks() + kGuardBlocks) return std::nullopt;
    const bool data = within < object->blocks();
    const std::uint64_t end = data ? object->blocks() : object->blocks() + kGuardBlocks;
    const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(left, end - within));
    push({.object = data ? object : nullptr, .first_block = data ? within : 0, .blocks = count});
    block += count;
    left -= count;
  }
  return pieces;
}

std::vector<Mapping> AddressSpace::mappings() const {
  const std::shared_lock lock(mutex_);
  std::vector<Mapping> all;
  for (const auto& [first, object] : objects_) all.push_back({.first_block = first, .object = object});
  return all;
}

std::uint64_t AddressSpace::next_block() const {
  const std::shared_lock lock(mutex_);
  return next_block_;
}

}  // namespace infercluster::target
