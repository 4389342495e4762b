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

// What keeps `boxes` (each within `shape`, none empty, no two equal) from covering every element exactly once, in
// words; nothing: they do. About n log n steps for n boxes of a mesh, and for any boxes that straight cuts separate;
// boxes that no cut separates are compared in pairs, at most 4096 of them.
std::optional<std::string> find_flaw(const std::vector<std::uint64_t>& shape,
                                     std::span<const manifest::Box* const> boxes);

}  // namespace infercluster::checkpoint
