// SPDX-License-Identifier: Apache-2.0
// What a rank gives to a round, and what comes of it: pure, bytes in, values out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "exchange/cause.h"

namespace infercluster::exchange {

enum class Call : std::uint8_t { gather, agree, decide };

struct Contribution {
  Call call = Call::gather;
  std::string tag;
  std::uint64_t lowest_open = 0;  // the lowest number of a nested exchange that this rank still has, or may yet open
  std::string bytes;
};

std::string encode_contribution(const Contribution& contribution);
// Errors: corrupt.
Result<Contribution> decode_contribution(std::string_view bytes);

struct Agreed {};
using Values = std::vector<std::string>;  // by rank
struct Decided {
  std::string bytes;
};
using Verdict = std::variant<Agreed, Values, Decided, Cause>;

std::string encode_verdict(const Verdict& verdict);
// Errors: corrupt; also when it is of another world than `world`.
Result<Verdict> decode_verdict(std::string_view bytes, int world);

// The verdict on a round that all ranks came to; for a decision what rank 0 decides upon. `in_job`: what messages call
// the ranks (cause.h).
Verdict judge(std::vector<Contribution> contributions, const std::vector<int>& in_job = {});

// "rank 3", "ranks 3, 5 and 12", "ranks 0, 1, ..., 15 and 40 more".
std::string name_ranks(const std::vector<int>& ranks);
// `missing` has at least one rank, as messages call it.
Cause missing_cause(const std::vector<int>& missing, std::string_view tag);

}  // namespace infercluster::exchange
