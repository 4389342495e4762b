// SPDX-License-Identifier: Apache-2.0
// Restores by ranks that are threads, on the host and on a device. Processes: restore_job_test.cc.
#include "checkpoint/restore_together.h"

#include <gtest/gtest.h>

#include "checkpoint/saved_test_helpers.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

using test::Dtype;
using test::Memory;
using test::whole;

class RestoreTogether : public test::OnEachDevice {
 protected:
  testing::TempDir temp_;
};
INSTANTIATE_TEST_SUITE_P(Where, RestoreTogether, test::every_device(), test::device_name);

Pieces pieces_of(std::uint64_t rank, std::uint64_t world) {
  Pieces pieces = test::mesh_pieces(rank, world);
  pieces.push_back(whole("large", Dtype::u8, {2'000'003}));
  return pieces;
}

TEST_P(RestoreTogether, RanksOfAnotherNumberReadEachByteOnce) {
  test::save(temp_.path().string(), &pieces_of, {.step = 1, .world = 4, .seed = 7});
  constexpr int kWorld = 3;
  const auto store = std::make_shared<exchange::MemoryStore>();
  std::vector<std::uint64_t> read(kWorld);
  exchange::run_ranks(exchange::ranks_of(kWorld), [&](int rank) {
    auto ranks = exchange::open_over_store(store, {rank, kWorld}, exchange::deadline_in(std::chrono::seconds(60)));
    ASSERT_TRUE(ranks.ok()) << ranks.error().to_string();
    Options options;
    options.exchange = ranks->get();
    auto checkpointer = Checkpointer::open(temp_.path().string(), options);
    const auto checkpoint = test::open_saved(temp_.path().string(), 1);
    Memory memory;
    for (const Piece& piece : pieces_of(static_cast<std::uint64_t>(rank), kWorld)) memory.add(piece, 0, false);
    const auto report = (*checkpointer)->restore(*checkpoint, memory.targets(), {});
    ASSERT_TRUE(report.ok()) << report.error().to_string();
    EXPECT_EQ(memory.difference(7), "");
    EXPECT_EQ(report->node_ranks, 3U);
    read[static_cast<std::size_t>(rank)] = report->bytes_read;
  });
  Memory all;
  for (std::uint64_t rank = 0; rank < kWorld; ++rank) {
    for (const Piece& piece : pieces_of(rank, kWorld)) all.add(piece, 0, false);
  }
  const auto unique = test::open_saved(temp_.path().string(), 1)->restore(all.targets(), {});
  EXPECT_EQ(read[0] + read[1] + read[2], unique->bytes_read);
  EXPECT_EQ(unique->bytes_received, 0U);
}

}  // namespace
}  // namespace infercluster::checkpoint
