// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <cstdio>

#include "safetensors/header.h"

namespace infercluster::safetensors {
namespace {

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::string table_of(std::size_t tensors) {
  std::string json = "{";
  for (std::size_t i = 0; i < tensors; ++i) {
    if (i > 0) json += ',';
    const std::string offsets = "[" + std::to_string(i * 16) + "," + std::to_string(i * 16 + 16) + "]";
    json +=
        entry("model.layers." + std::to_string(i / 9) + ".mlp.experts." + std::to_string(i % 9) + ".down_proj.weight",
              "BF16", "[2,4]", offsets);
  }
  return json + "}";
}

// Least processor time of several parses, in ns: other load on the machine does not count.
std::int64_t cost_ns(const std::string& json, std::size_t tensors, int rounds) {
  std::int64_t least = INT64_MAX;
  for (int round = 0; round < rounds; ++round) {
    timespec begin{};
    timespec end{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    const Result<Header> parsed =
        parse_header(std::as_bytes(std::span(json.data(), json.size())), 8 + json.size() + tensors * 16);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    EXPECT_TRUE(parsed.ok() && parsed->tensors().size() == tensors);
    least = std::min(least, (end.tv_sec - begin.tv_sec) * std::int64_t{1'000'000'000} + end.tv_nsec - begin.tv_nsec);
  }
  return least;
}

TEST(HeaderCost, GrowsLinearly) {
  const std::int64_t small = cost_ns(table_of(1'000), 1'000, 20);
  const std::int64_t large = cost_ns(table_of(100'000), 100'000, 3);
  RecordProperty("ns_per_1k", std::to_string(small));
  RecordProperty("ns_per_100k", std::to_string(large));
  std::printf("1,000 tensors: %.3f ms; 100,000 tensors: %.3f ms\n", static_cast<double>(small) / 1e6,
              static_cast<double>(large) / 1e6);
  EXPECT_LT(large, 100 * small * 8);  // a quadratic step would make it 100 times more
}

}  // namespace
}  // namespace infercluster::safetensors
