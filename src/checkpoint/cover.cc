// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/cover.h"

#include <algorithm>

#include "checkpoint/plan.h"

namespace infercluster::checkpoint {
namespace {

constexpr std::size_t kPairwiseMax = 4096;

using Boxes = std::vector<const Box*>;

std::uint64_t begin_of(const Box& box, std::size_t dimension) {
  return box.offsets[dimension];
}
std::uint64_t end_of(const Box& box, std::size_t dimension) {
  return box.offsets[dimension] + box.lengths[dimension];  // within a shape: cannot wrap
}

std::uint64_t volume_of(const std::vector<std::uint64_t>& lengths) {
  std::uint64_t volume = 1;
  for (const std::uint64_t length : lengths) volume *= length;  // checked by tensor_bytes: cannot wrap
  return volume;
}

bool overlap(const Box& a, const Box& b) {
  for (std::size_t d = 0; d < a.offsets.size(); ++d) {
    if (end_of(a, d) <= begin_of(b, d) || end_of(b, d) <= begin_of(a, d)) return false;
  }
  return true;
}

Flaw overlap_of(const Box& a, const Box& b) {
  return {"the boxes " + to_string(a) + " and " + to_string(b) + " overlap", {&a, &b}};
}

// Groups of boxes between which a straight cut across `dimension` goes. One group: no cut there.
std::vector<Boxes> cut(Boxes boxes, std::size_t dimension) {
  std::sort(boxes.begin(), boxes.end(),
            [dimension](const Box* a, const Box* b) { return begin_of(*a, dimension) < begin_of(*b, dimension); });
  std::vector<Boxes> groups;
  std::uint64_t end = 0;
  for (const Box* box : boxes) {
    if (groups.empty() || begin_of(*box, dimension) >= end) groups.emplace_back();
    groups.back().push_back(box);
    end = std::max(end, end_of(*box, dimension));
  }
  return groups;
}

std::optional<Flaw> find_overlap_in_pairs(const Boxes& boxes) {
  if (boxes.size() > kPairwiseMax)
    return Flaw{std::to_string(boxes.size()) + " boxes interlock so that they cannot be checked for overlaps", {}};
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t k = i + 1; k < boxes.size(); ++k) {
      if (overlap(*boxes[i], *boxes[k])) return overlap_of(*boxes[i], *boxes[k]);
    }
  }
  return std::nullopt;
}

// Work lists instead of recursion: the depth is whatever the boxes say.
std::optional<Flaw> find_overlap(Boxes boxes, std::size_t dimensions) {
  std::vector<Boxes> open;
  open.push_back(std::move(boxes));
  while (!open.empty()) {
    Boxes group = std::move(open.back());
    open.pop_back();
    if (group.size() < 2) continue;
    bool parted = false;
    for (std::size_t d = 0; d < dimensions && !parted; ++d) {
      std::vector<Boxes> groups = cut(group, d);
      if (groups.size() < 2) continue;
      parted = true;
      for (Boxes& part : groups) open.push_back(std::move(part));
    }
    if (parted) continue;
    if (auto flaw = find_overlap_in_pairs(group)) return flaw;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Flaw> find_flaw(const std::vector<std::uint64_t>& shape, std::span<const manifest::Box* const> boxes) {
  if (auto flaw = find_overlap(Boxes(boxes.begin(), boxes.end()), shape.size())) return flaw;
  // Without overlaps, the volumes say whether there is a hole.
  const std::uint64_t wanted = volume_of(shape);
  std::uint64_t found = 0;
  for (const Box* box : boxes) found += volume_of(box->lengths);
  if (found == wanted) return std::nullopt;
  return Flaw{"no rank holds " + std::to_string(wanted - found) + " of its " + std::to_string(wanted) + " elements",
              {}};
}

}  // namespace infercluster::checkpoint
