// SPDX-License-Identifier: Apache-2.0
// The virtual blocks of a namespace. An address is written once: each object gets a range that no other ever gets, and
// when it is unmapped its range answers with a definite error, never with another object's bytes.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "target/object.h"

namespace infercluster::target {

// 2^50 blocks of 4 KiB; twice as many overflow Linux's file offsets.
inline constexpr std::uint64_t kSpaceBlocks = std::uint64_t{1} << 50;
// Zeros at both ends, where hosts probe for partitions and file systems, and behind each object, where they read ahead.
inline constexpr std::uint64_t kEdgeBlocks = kGiB / kBlockBytes;
inline constexpr std::uint64_t kGuardBlocks = 16 * kMiB / kBlockBytes;
inline constexpr std::uint32_t kReadBlocksMax = 256;  // MDTS: 1 MiB, less than a guard: a read meets one object at most

// Part of what a read names: blocks of an object, or zeros.
struct Piece {
  std::shared_ptr<const Object> object;  // held until the bytes have left; null: zeros
  std::uint64_t first_block = 0;         // of the object
  std::uint32_t blocks = 0;
};
struct Pieces {
  std::array<Piece, 3> list;  // zeros, an object, zeros: at most
  std::size_t count = 0;
};

struct Mapping {
  std::uint64_t first_block = 0;
  std::shared_ptr<const Object> object;
};

// Thread rule: any thread may call anything.
class AddressSpace {
 public:
  // Ranges are given out from `next_block` on, which is above every range that was ever given out under this
  // namespace's UUID.
  explicit AddressSpace(std::uint64_t next_block = kEdgeBlocks) : next_block_(next_block) {}

  // A fresh range for the object. Errors: too_large (the space is used up: a new namespace is needed).
  Result<Mapping> add(std::shared_ptr<const Object> object);
  // At a range that this very object had before a restart. Errors: invalid_argument (another object is there, or it
  // lies at or above the next fresh block).
  Status restore(const Mapping& mapping);
  // From now on reads of the range fail. False: no object begins there.
  bool unmap(std::uint64_t first_block);

  // What `blocks` (1 to kReadBlocksMax) from `first_block` are, with their objects held; nullopt: some of them belong
  // to nobody, or to an object that is gone.
  [[nodiscard]] std::optional<Pieces> find(std::uint64_t first_block, std::uint32_t blocks) const;

  [[nodiscard]] std::vector<Mapping> mappings() const;
  [[nodiscard]] std::uint64_t next_block() const;

 private:
  mutable std::shared_mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<const Object>> objects_;  // by first block
  std::uint64_t next_block_;
};

}  // namespace infercluster::target
