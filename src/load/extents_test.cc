// SPDX-License-Identifier: Apache-2.0
#include "load/extents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "load/plan.h"

namespace infercluster::load {
namespace {

using ::testing::ElementsAre;

TEST(Extents, TouchingOnesAreMadeOne) {
  EXPECT_THAT(coalesced({{8, 12}, {0, 4}, {4, 6}, {9, 10}}), ElementsAre(Extent{0, 6}, Extent{8, 12}));
  EXPECT_TRUE(coalesced({}).empty());
}

TEST(Extents, AreWidenedToTheGranularity) {
  EXPECT_EQ(aligned({1, 4097}, 4096), (Extent{0, 8192}));
  EXPECT_EQ(aligned({4096, 8192}, 4096), (Extent{4096, 8192}));
}

TEST(Extents, RowsAreReadOneByOneWhenThatReadsLess) {
  std::vector<Extent> extents;
  const std::vector<StagedRows> far{{0, {4096, 100, 3, 40960, 0}}};
  append_row_extents(far, 4096, extents);
  EXPECT_THAT(extents, ElementsAre(Extent{4096, 8192}, Extent{45056, 49152}, Extent{86016, 90112}));
  extents.clear();
  const std::vector<StagedRows> near{{0, {4096, 100, 50, 200, 0}}};
  append_row_extents(near, 4096, extents);
  EXPECT_THAT(extents, ElementsAre(Extent{4096, 16384}));
}

TEST(Extents, ATransferKnowsWhichRowsItBrings) {
  std::vector<PlannedTransfer> transfers(3);
  for (std::size_t i = 0; i < 3; ++i) {
    transfers[i].file_offset = i * 8192;
    transfers[i].length = 4096;
  }
  const std::vector<StagedRows> rows{
      {0, {100, 10, 1, 10, 0}},       // in the first
      {1, {4096, 100, 2, 16384, 0}},  // its rows lie in the gaps
      {2, {4000, 200, 2, 12480, 0}},  // reaches into the first, and starts within the third
  };
  assign_scatter(transfers, rows);
  EXPECT_THAT(transfers[0].scatter, ElementsAre(0U, 2U));
  EXPECT_THAT(transfers[1].scatter, ElementsAre());
  EXPECT_THAT(transfers[2].scatter, ElementsAre(2U));
}

}  // namespace
}  // namespace infercluster::load
