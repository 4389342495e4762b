// SPDX-License-Identifier: Apache-2.0
// scale_planner WORLD...: what planning and committing a save of Llama 3.1 405B costs so many ranks; a line of JSON
// each.
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "bench/scale/simulation.h"
#include "bench/scale/training_state.h"

namespace infercluster::scale {
namespace {

constexpr std::uint64_t kIndexes = 16;

using Json = nlohmann::ordered_json;

Json json_of(const Traffic& traffic) {
  return {{"messages", traffic.messages}, {"sent", traffic.bytes_sent}, {"received", traffic.bytes_received}};
}

Json json_of(const Figures& figures, const Parallelism& parallelism) {
  return {{"benchmark", "scale"},
          {"world", figures.world},
          {"parallelism", {parallelism.stages, parallelism.data, parallelism.tensor}},
          {"groups", figures.groups},
          {"pieces", figures.pieces},
          {"chunks", figures.chunks},
          {"bytes", figures.bytes},
          {"balance", figures.balance},
          {"rank_s_max", figures.rank_seconds_max},
          {"rank_s_median", figures.rank_seconds_median},
          {"coordinator_s", figures.coordinator_seconds},
          {"s_per_chunk", figures.seconds_per_chunk},
          {"reuse_s", figures.reuse_seconds},
          {"rank_bytes_peak", figures.rank_bytes_peak},
          {"rank_bytes_kept", figures.rank_bytes_kept},
          {"coordinator_bytes_peak", figures.coordinator_bytes_peak},
          {"rank_new", json_of(figures.rank_new)},
          {"coordinator_new", json_of(figures.coordinator_new)},
          {"rank_again", json_of(figures.rank_again)},
          {"coordinator_again", json_of(figures.coordinator_again)},
          {"commit_bytes", figures.commit_bytes},
          {"commit_build_s", figures.commit_build_seconds},
          {"commit_parse_s", figures.commit_parse_seconds},
          {"index_bytes_max", figures.index_bytes_max},
          {"index_bytes", figures.index_bytes},
          {"index_parse_s", figures.index_parse_seconds},
          {"index_heap_bytes", figures.index_heap_bytes},
          {"own_indexes_max", figures.own_indexes_max},
          {"own_indexes_mean", figures.own_indexes_mean}};
}

int run(int count, char** worlds) {
  const Model model;
  for (int i = 1; i < count; ++i) {
    const Parallelism parallelism = parallelism_of(std::strtoull(worlds[i], nullptr, 10));
    const auto figures = simulate(
        {parallelism.world(), [&](std::uint64_t rank) { return pieces_of(model, parallelism, rank); }, kIndexes});
    if (!figures.ok()) {
      std::fprintf(stderr, "scale_planner: %s\n", figures.error().to_string().c_str());
      return 1;
    }
    if (figures->bytes != state_bytes(model)) {
      std::fprintf(stderr, "scale_planner: %llu bytes would be written of %llu\n",
                   static_cast<unsigned long long>(figures->bytes),
                   static_cast<unsigned long long>(state_bytes(model)));
      return 1;
    }
    std::printf("%s\n", json_of(*figures, parallelism).dump().c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace infercluster::scale

int main(int count, char** arguments) {
  return infercluster::scale::run(count, arguments);
}
