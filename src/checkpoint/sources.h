// SPDX-License-Identifier: Apache-2.0
// Whose indexes a rank needs to read back just what it held: a key of its own index's metadata says so, so that a job
// that goes on as it was need not read the indexes of all ranks. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "manifest/index.h"

namespace infercluster::checkpoint {

inline constexpr std::string_view kSourcesKey = "infercluster.sources";

// Ranks, ascending, as "0-3,17". Nothing where that is longer than it is worth.
std::optional<std::string> encode_sources(const std::vector<std::uint64_t>& ranks);
// What such an index says. Nothing where it says nothing, or nothing that ranks below `world` could mean.
std::optional<std::vector<std::uint64_t>> sources_in(const manifest::Index& index, std::uint64_t world);

}  // namespace infercluster::checkpoint
