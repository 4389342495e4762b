// SPDX-License-Identifier: Apache-2.0
// Which of several ranks has the least to write. Pure.
#pragma once

#include <cstdint>
#include <queue>
#include <span>
#include <unordered_map>
#include <vector>

#include "checkpoint/plan.h"

namespace infercluster::checkpoint {

class LeastLoaded {
 public:
  // `loads`: bytes that each rank has to write already.
  LeastLoaded(std::span<const Group> groups, std::vector<std::uint64_t> loads)
      : groups_(groups), loads_(std::move(loads)) {}

  void add(std::uint64_t rank, std::uint64_t bytes) { loads_[rank] += bytes; }

  struct Choice {
    std::size_t holder = 0;  // of `groups`
    std::uint64_t rank = 0;
  };
  // Gives the bytes to the least loaded rank of these groups, to the lowest where several are. About log n steps for n
  // ranks, but n log n when these groups are asked for first.
  Choice choose(const std::vector<std::size_t>& groups, std::uint64_t bytes);

 private:
  struct Candidate {
    std::uint64_t load = 0;  // when it was put there; it may have more by now, never less
    std::uint64_t rank = 0;
    std::size_t holder = 0;
    bool operator>(const Candidate& other) const { return load != other.load ? load > other.load : rank > other.rank; }
  };
  using Heap = std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>>;

  const std::span<const Group> groups_;
  std::vector<std::uint64_t> loads_;
  std::unordered_map<std::string, Heap> heaps_;  // by the bytes of `groups`
};

}  // namespace infercluster::checkpoint
