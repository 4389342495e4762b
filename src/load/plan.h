// SPDX-License-Identifier: Apache-2.0
// The load planner: wanted tensors -> where each will live, and the transfers that bring it there. Pure: no I/O, no
// clock.
//
// A tensor *lands* when its bytes are contiguous in the file and no memory of the caller was named: its shard's arena
// is congruent with the file (arena offset = file offset modulo the granularity), so that direct reads put the bytes
// where the tensor will live. All else is *staged*: read into a small ring and copied from there. Tensors that land
// unaligned for their dtype are moved once, downwards, within the arena.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "load/selection.h"

namespace infercluster::load {

// How one shard is read.
struct ShardTraits {
  std::uint64_t file_size = 0;
  std::uint64_t granularity =
      4096;  // extents begin and end at multiples of it (or at the end of the file): a power of two, 4096 at least
  std::uint64_t transfer_bytes = 8 << 20;  // of landed transfers, at most; a multiple of granularity
};

struct PlanOptions {
  std::vector<ShardTraits> shards;       // one per shard of the tables
  std::uint64_t staged_bytes = 4 << 20;  // of staged transfers, at most; a multiple of every granularity
  std::uint64_t unit_bytes = 0;          // stream: units of about this size; 0: one unit per shard
  std::uint32_t tensor_alignment = 0;    // Options::tensor_alignment
  bool landing = true;                   // false: everything is staged (device memory)
  bool check_headers = false;            // also read what lies before the data, to check its checksums
};

enum class Placement : std::uint8_t {
  arena,   // at `offset` of its unit's arena
  caller,  // in memory of the caller
  empty,   // zero bytes: nowhere
};

struct PlannedTensor {
  TensorRef ref;
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes = 0;
  Placement placement = Placement::empty;
  std::uint64_t offset = 0;                 // in the unit's arena, after moves
  std::optional<memory::Span> destination;  // of Placement::caller

  // Where its bytes are; `unit` is its unit's memory. Not of Placement::empty.
  [[nodiscard]] memory::Span span_in(const memory::Span& unit) const {
    return placement == Placement::caller ? *destination : unit.part(offset, bytes);
  }
};

// Rows of one tensor that arrive by staged transfers.
struct StagedRows {
  std::size_t tensor = 0;  // index into Plan::tensors
  Rows rows;
};

struct PlannedTransfer {
  std::uint64_t file_offset = 0;  // multiple of the granularity
  std::uint32_t length = 0;       // multiple of the granularity; may reach beyond the end of the file
  std::uint64_t end_of_data = 0;  // file offset: bytes from here on are not needed, or not there
  bool landed = false;
  std::uint64_t arena_offset = 0;      // landed: where its first byte goes
  std::vector<std::uint32_t> scatter;  // staged: indices into Unit::rows that it brings bytes of
};

struct Move {
  std::uint64_t from = 0;  // arena offsets; to < from
  std::uint64_t to = 0;
  std::uint64_t bytes = 0;
};

// What shares one arena and is delivered together.
struct Unit {
  std::size_t shard = 0;
  std::uint64_t arena_bytes = 0;
  std::uint64_t landing_bytes = 0;  // of the arena, from its start: prefaulted ahead of reads
  std::size_t first_tensor = 0;     // Plan::tensors[first_tensor, last_tensor)
  std::size_t last_tensor = 0;
  std::vector<PlannedTransfer> transfers;  // in file order
  std::vector<StagedRows> rows;
  std::vector<Move> moves;  // in this order, once all transfers are delivered
};

struct Plan {
  std::vector<PlannedTensor> tensors;  // units' tensors one behind the other
  std::vector<Unit> units;
  std::uint64_t tensor_bytes = 0;  // as delivered
  std::uint64_t arena_bytes = 0;   // of all units
  std::uint64_t caller_bytes = 0;  // of tensor_bytes, in memory of the caller
  std::uint64_t read_bytes = 0;    // from the files, alignment included
  std::uint64_t move_bytes = 0;
  std::uint64_t transfers = 0;
  bool staged = false;  // any staged transfer: a ring is needed

  // Memory of arenas that is not a tensor: padding.
  [[nodiscard]] std::uint64_t padding_bytes() const { return arena_bytes - (tensor_bytes - caller_bytes); }
};

Result<Plan> make_plan(const Tables& tables, std::vector<WantedTensor> wanted, const PlanOptions& options);

}  // namespace infercluster::load
