// SPDX-License-Identifier: Apache-2.0
// Do boxes tile a tensor? Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "manifest/index.h"

namespace infercluster::checkpoint {

// What keeps boxes from covering every element exactly once.
struct Flaw {
  std::string text;
  std::vector<const manifest::Box*> overlapping;  // two of those given, or none where elements are missing
};

// Nothing: `boxes` (each within `shape`, none empty, no two equal) cover every element exactly once. About n log n
// steps for n boxes of a mesh, and for any boxes that straight cuts separate; boxes that no cut separates are compared
// in pairs, at most 4096 of them.
std::optional<Flaw> find_flaw(const std::vector<std::uint64_t>& shape, std::span<const manifest::Box* const> boxes);

}  // namespace infercluster::checkpoint
