// SPDX-License-Identifier: Apache-2.0
// All ranks of a job in one place: what each would write.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/plan.h"

namespace infercluster::checkpoint::test {

struct WholePlan {
  std::string hash;
  std::vector<std::vector<std::size_t>> writes;  // per rank: which of its pieces
  std::vector<std::uint64_t> bytes;              // per rank
  std::uint64_t copies = 0;
};

inline Result<std::vector<Group>> groups_of(const std::vector<Pieces>& ranks) {
  std::map<std::string, std::size_t> by_digest;
  std::vector<Group> groups;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string text = encode_pieces(ranks[rank]);
    const auto [group, fresh] = by_digest.try_emplace(digest_of(text), groups.size());
    if (fresh) {
      IC_TRY(Pieces pieces, decode_pieces(text));
      groups.push_back({digest_of(text), std::move(pieces), {}});
    }
    groups[group->second].ranks.push_back(rank);
  }
  return groups;
}

// As a save does it, by the text that travels.
inline Result<WholePlan> plan_all(const std::vector<Pieces>& ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) IC_CHECK(check_held(ranks[rank], rank));
  IC_TRY(const std::vector<Group> groups, groups_of(ranks));
  IC_TRY(const Plan plan, plan_writes(groups, ranks.size()));
  const std::string text = encode_plan(plan, groups);
  WholePlan whole{plan.hash, {}, {}, plan.copies};
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    IC_TRY(const OwnPlan own, decode_plan(text, digest_of(encode_pieces(ranks[rank])), ranks[rank].size()));
    whole.writes.push_back(own_share(ranks[rank], rank, own.writers).writes);
    whole.bytes.push_back(0);
    for (const std::size_t i : whole.writes.back()) {
      IC_TRY(const std::uint64_t bytes, check_piece(ranks[rank][i]));
      whole.bytes.back() += bytes;
    }
  }
  return whole;
}

}  // namespace infercluster::checkpoint::test
