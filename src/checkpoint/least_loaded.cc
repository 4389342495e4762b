// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/least_loaded.h"

#include <string>

namespace infercluster::checkpoint {

LeastLoaded::Choice LeastLoaded::choose(const std::vector<std::size_t>& groups, std::uint64_t bytes) {
  const std::string key(reinterpret_cast<const char*>(groups.data()), groups.size() * sizeof(std::size_t));
  const auto [place, fresh] = heaps_.try_emplace(key);
  Heap& heap = place->second;
  if (fresh) {
    std::vector<Candidate> all;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      for (const std::uint64_t rank : groups_[groups[i]].ranks) all.push_back({loads_[rank], rank, i});
    }
    heap = Heap(std::greater<>(), std::move(all));
  }
  while (heap.top().load != loads_[heap.top().rank]) {
    Candidate stale = heap.top();
    heap.pop();
    stale.load = loads_[stale.rank];
    heap.push(stale);
  }
  Candidate least = heap.top();
  heap.pop();
  least.load = loads_[least.rank] += bytes;
  heap.push(least);
  return {least.holder, least.rank};
}

}  // namespace infercluster::checkpoint
