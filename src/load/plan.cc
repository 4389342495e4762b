// SPDX-License-Identifier: Apache-2.0
#include "load/plan.h"

#include <algorithm>

#include "base/assert.h"
#include "base/units.h"
#include "load/extents.h"

namespace infercluster::load {
namespace {

// A run that lands must waste less than this part of itself on alignment, or it is staged and packed.
constexpr std::uint64_t kWasteDivisor = 64;

std::uint64_t alignment_for(safetensors::Dtype dtype, const PlanOptions& options) {
  return std::max<std::uint64_t>(safetensors::alignment_of(dtype), options.tensor_alignment);
}

// Plans one unit: the wanted tensors [first, last) of one shard.
class UnitPlanner {
 public:
  UnitPlanner(const Tables& tables, const PlanOptions& options, std::vector<WantedTensor>& wanted, Plan& plan)
      : tables_(tables), options_(options), wanted_(wanted), plan_(plan) {}

  void run(std::size_t first, std::size_t last, bool with_header) {
    unit_.shard = wanted_[first].ref.shard;
    traits_ = options_.shards[unit_.shard];
    unit_.first_tensor = plan_.tensors.size();
    for (std::size_t i = first; i < last; ++i) add_tensor(wanted_[i]);
    unit_.last_tensor = plan_.tensors.size();
    std::vector<Extent> landing = landing_runs();
    for (const Extent& run : landing) land(run);
    unit_.landing_bytes = unit_.arena_bytes;
    if (with_header) add_header_check(landing);
    stage();
    std::stable_sort(unit_.transfers.begin(), unit_.transfers.end(),
                     [](const PlannedTransfer& a, const PlannedTransfer& b) { return a.file_offset < b.file_offset; });
    finish();
  }

 private:
  struct Piece {  // a contiguous tensor that may land
    std::size_t tensor = 0;
    Rows rows;
  };

  void add_tensor(WantedTensor& wanted) {
    PlannedTensor planned{wanted.ref,        std::move(wanted.part.shape), wanted.part.bytes, Placement::empty, 0,
                          wanted.destination};
    const std::size_t index = plan_.tensors.size();
    plan_.tensor_bytes += planned.bytes;
    if (planned.bytes > 0) planned.placement = wanted.destination ? Placement::caller : Placement::arena;
    if (planned.placement == Placement::caller) plan_.caller_bytes += planned.bytes;
    const std::vector<Rows>& rows = wanted.part.rows;
    if (options_.landing && planned.placement == Placement::arena && rows.size() == 1 && rows.front().count == 1) {
      pieces_.push_back({index, rows.front()});
    } else {
      for (const Rows& group : rows) unit_.rows.push_back({index, group});
    }
    plan_.tensors.push_back(std::move(planned));
  }

  // The aligned extents that land, each with the pieces within it; pieces of wasteful runs become staged rows.
  std::vector<Extent> landing_runs() {
    std::vector<Extent> extents;
    for (const Piece& piece : pieces_) {
      extents.push_back(aligned({piece.rows.file_offset, piece.rows.file_end()}, traits_.granularity));
    }
    extents = coalesced(std::move(extents));
    if (extents.size() <= 1) return extents;
    std::vector<Extent> kept;
    std::vector<Piece> landed;
    std::size_t at = 0;
    for (const Extent& run : extents) {
      const std::size_t begin = at;
      std::uint64_t useful = 0;
      for (; at < pieces_.size() && pieces_[at].rows.file_offset < run.end; ++at) useful += pieces_[at].rows.row_bytes;
      if (run.length() - useful <= useful / kWasteDivisor) {
        kept.push_back(run);
        landed.insert(landed.end(), pieces_.begin() + static_cast<std::ptrdiff_t>(begin),
                      pieces_.begin() + static_cast<std::ptrdiff_t>(at));
      } else {
        for (std::size_t i = begin; i < at; ++i) unit_.rows.push_back({pieces_[i].tensor, pieces_[i].rows});
      }
    }
    pieces_ = std::move(landed);
    return kept;
  }

  // Gives a run its place in the arena and plans its transfers and moves.
  void land(const Extent& run) {
    std::vector<std::size_t> inside;  // pieces, ascending
    for (; next_piece_ < pieces_.size() && pieces_[next_piece_].rows.file_offset < run.end; ++next_piece_)
      inside.push_back(next_piece_);
    // From the last to the first: each tensor at or below where it lands, aligned, and below its successor. Positions
    // are relative to the run's start, biased by kBias so that a shift below the run's start stays positive.
    constexpr std::uint64_t kBias = std::uint64_t{1} << 62;
    std::vector<std::uint64_t> target(inside.size());
    std::uint64_t ceiling = UINT64_MAX;
    for (std::size_t i = inside.size(); i-- > 0;) {
      const Piece& piece = pieces_[inside[i]];
      const std::uint64_t landing = kBias + (piece.rows.file_offset - run.begin);
      const std::uint64_t highest = ceiling == UINT64_MAX ? landing : std::min(landing, ceiling - piece.rows.row_bytes);
      target[i] = align_down(highest, alignment_for(dtype_of(piece.tensor), options_));
      ceiling = target[i];
    }
    const std::uint64_t below = ceiling < kBias ? kBias - ceiling : 0;
    const std::uint64_t base = align_up(unit_.arena_bytes, traits_.granularity) + align_up(below, traits_.granularity);
    for (std::size_t i = 0; i < inside.size(); ++i) {
      const Piece& piece = pieces_[inside[i]];
      const std::uint64_t from = base + (piece.rows.file_offset - run.begin);
      const std::uint64_t to = base + target[i] - kBias;
      plan_.tensors[piece.tensor].offset = to;
      if (from != to) unit_.moves.push_back({from, to, piece.rows.row_bytes});
    }
    for (std::uint64_t at = run.begin; at < run.end;) {
      const std::uint64_t length = std::min(traits_.transfer_bytes, run.end - at);
      PlannedTransfer transfer;
      transfer.file_offset = at;
      transfer.length = static_cast<std::uint32_t>(length);
      transfer.end_of_data = std::min(traits_.file_size, at + length);
      transfer.landed = true;
      transfer.arena_offset = base + (at - run.begin);
      unit_.transfers.push_back(std::move(transfer));
      at += length;
    }
    unit_.arena_bytes = base + run.length();
  }

  // What lies before the data and is not read anyway.
  void add_header_check(const std::vector<Extent>& landing) {
    std::uint64_t end = align_up(tables_.shards[unit_.shard]->data_begin(), traits_.granularity);
    if (!landing.empty()) end = std::min(end, landing.front().begin);
    if (end > 0) header_check_ = {0, end};
  }

  // Packs staged tensors behind what landed, and plans their transfers.
  void stage() {
    std::vector<Extent> extents;
    for (std::size_t i = 0; i < unit_.rows.size();) {
      const std::size_t tensor = unit_.rows[i].tensor;
      std::size_t last = i;
      while (last < unit_.rows.size() && unit_.rows[last].tensor == tensor) ++last;
      append_row_extents(std::span(unit_.rows).subspan(i, last - i), traits_.granularity, extents);
      i = last;
      PlannedTensor& planned = plan_.tensors[tensor];
      if (planned.placement != Placement::arena) continue;
      planned.offset =
          align_up(unit_.arena_bytes, std::max<std::uint64_t>(alignment_for(dtype_of(tensor), options_), 16));
      unit_.arena_bytes = planned.offset + planned.bytes;
    }
    if (header_check_.length() > 0) extents.push_back(header_check_);
    const std::size_t first = unit_.transfers.size();
    for (const Extent& run : coalesced(std::move(extents))) {
      for (std::uint64_t at = run.begin; at < run.end;) {
        const std::uint64_t length = std::min(options_.staged_bytes, run.end - at);
        PlannedTransfer transfer;
        transfer.file_offset = at;
        transfer.length = static_cast<std::uint32_t>(length);
        transfer.end_of_data = std::min(traits_.file_size, at + length);
        unit_.transfers.push_back(std::move(transfer));
        at += length;
      }
    }
    assign_scatter(std::span(unit_.transfers).subspan(first), unit_.rows);
    plan_.staged = plan_.staged || unit_.transfers.size() > first;
  }

  void finish() {
    for (const Move& move : unit_.moves) plan_.move_bytes += move.bytes;
    for (const PlannedTransfer& transfer : unit_.transfers)
      plan_.read_bytes += transfer.end_of_data - transfer.file_offset;
    plan_.transfers += unit_.transfers.size();
    plan_.arena_bytes += unit_.arena_bytes;
    plan_.units.push_back(std::move(unit_));
  }

  [[nodiscard]] safetensors::Dtype dtype_of(std::size_t tensor) const {
    return tables_.tensor(plan_.tensors[tensor].ref).dtype;
  }

  const Tables& tables_;
  const PlanOptions& options_;
  std::vector<WantedTensor>& wanted_;
  Plan& plan_;
  Unit unit_;
  ShardTraits traits_;
  std::vector<Piece> pieces_;
  std::size_t next_piece_ = 0;
  Extent header_check_;
};

}  // namespace

Result<Plan> make_plan(const Tables& tables, std::vector<WantedTensor> wanted, const PlanOptions& options) {
  IC_ASSERT(options.shards.size() == tables.shards.size());
  Plan plan;
  plan.tensors.reserve(wanted.size());
  std::size_t first = 0;
  bool first_of_shard = true;
  while (first < wanted.size()) {
    const std::size_t shard = wanted[first].ref.shard;
    std::uint64_t bytes = 0;
    std::size_t last = first;
    for (; last < wanted.size() && wanted[last].ref.shard == shard; ++last) {
      const std::uint64_t next = wanted[last].part.bytes;
      if (options.unit_bytes > 0 && last > first && next > options.unit_bytes - std::min(bytes, options.unit_bytes))
        break;
      bytes += next;
    }
    UnitPlanner(tables, options, wanted, plan).run(first, last, options.check_headers && first_of_shard);
    first_of_shard = last < wanted.size() && wanted[last].ref.shard != shard;
    first = last;
  }
  return plan;
}

}  // namespace infercluster::load
