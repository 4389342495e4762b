// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/listing.h"

#include <gtest/gtest.h>

#include "checkpoint/directory.h"
#include "checkpoint/names.h"
#include "checkpoint/saved_test_helpers.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

using test::mesh_pieces;

Listing list(const testing::TempDir& temp) {
  io::FileCalls& calls = io::system_files();
  return *list_root(calls, *calls.open_directory(temp.path().string()));
}

TEST(ListRoot, TellsWhatIsDurableVerifiedLatestAndLeftBehind) {
  const testing::TempDir temp;
  const std::string root = temp.path().string();
  for (const std::uint64_t step : {5U, 10U, 20U, 30U, 40U})
    test::save(root, mesh_pieces, {.step = step, .world = step == 5 ? 3U : 1U});
  std::filesystem::remove(root + "/step-20/COMMIT");                            // as an interrupted save leaves it
  std::filesystem::resize_file(root + "/step-30/node-0.0.1.safetensors", 100);  // cut behind our back
  std::string record = *os::read_small_file(root + "/step-40/COMMIT", 1 << 20);
  record.replace(record.find("\"version\":1"), 11, "\"version\":9");
  temp.write("step-40/COMMIT", record);
  temp.write(trash_name(3, "0123456789abcdef") + "/node-0.0.1.safetensors", "12345");
  temp.write("step-07/COMMIT", "not ours");
  temp.write("notes.txt", "not ours");

  const Listing listing = list(temp);
  ASSERT_EQ(listing.steps.size(), 5U);
  EXPECT_EQ(listing.latest, 10U);
  const ListedStep& three_ranks = *listing.find(5);
  EXPECT_TRUE(three_ranks.durable && three_ranks.verified && !three_ranks.problem);
  EXPECT_EQ(three_ranks.world, 3U);
  EXPECT_EQ(three_ranks.epoch, 1U);
  ASSERT_TRUE(three_ranks.committed_ns.has_value());
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root + "/step-5")) bytes += entry.file_size();
  EXPECT_EQ(three_ranks.bytes, bytes);
  EXPECT_TRUE(!listing.find(20)->durable && !listing.find(20)->verified && !listing.find(20)->problem);
  const ListedStep& cut = *listing.find(30);
  EXPECT_TRUE(cut.durable && !cut.verified);
  ASSERT_TRUE(cut.problem.has_value());
  EXPECT_EQ(cut.problem->code(), ErrorCode::corrupt);
  const ListedStep& newer = *listing.find(40);
  EXPECT_TRUE(!newer.durable && !newer.verified);
  ASSERT_TRUE(newer.problem.has_value());
  EXPECT_NE(newer.problem->message().find("version 9"), std::string::npos) << newer.problem->to_string();
  EXPECT_EQ(listing.find(7), nullptr);
  ASSERT_EQ(listing.trash.size(), 1U);
  EXPECT_EQ(listing.trash[0].name, ".trash-step-3-0123456789abcdef");
  EXPECT_EQ(listing.trash[0].bytes, 5U);
}

TEST(ListRoot, AReplacedStepShowsTheEpochThatCounts) {
  const testing::TempDir temp;
  auto checkpointer = Checkpointer::open(temp.path().string(), {});
  test::Memory memory;
  memory.add(test::whole("w", test::Dtype::u8, {10}), 1);
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE((*checkpointer)->save(1, memory.state(), {Wait::until_durable, Exists::replace}).ok());
  (*checkpointer)->wait_idle();
  const Listing listing = list(temp);
  ASSERT_EQ(listing.steps.size(), 1U);
  EXPECT_EQ(listing.steps[0].epoch, 3U);
  EXPECT_TRUE(listing.steps[0].committed_ns.has_value());
}

TEST(ListRoot, AnEmptyFolderHasNothing) {
  const testing::TempDir temp;
  const Listing listing = list(temp);
  EXPECT_TRUE(listing.steps.empty());
  EXPECT_EQ(listing.latest, std::nullopt);
}

// Steps in the order of their commits; 0: it is not verified.
Listing listing_of(const std::vector<std::uint64_t>& in_order, std::uint64_t unverified = UINT64_MAX) {
  Listing listing;
  std::int64_t time = 1000;
  for (const std::uint64_t step : in_order) {
    ListedStep listed;
    listed.step = step;
    listed.durable = true;
    listed.verified = step != unverified;
    listed.committed_ns = ++time;
    listing.steps.push_back(listed);
  }
  std::sort(listing.steps.begin(), listing.steps.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  for (const ListedStep& step : listing.steps) {
    if (step.verified) listing.latest = step.step;
  }
  return listing;
}

using Steps = std::vector<std::uint64_t>;

TEST(ChooseToRemove, KeepsTheNewestAndThoseOfTheInterval) {
  const Listing listing = listing_of({100, 200, 300, 400, 500});
  EXPECT_EQ(choose_to_remove(listing, {.keep = 2}), (Steps{100, 200, 300}));
  EXPECT_EQ(choose_to_remove(listing, {.keep = 2, .keep_every = 200}), (Steps{100, 300}));
  EXPECT_EQ(choose_to_remove(listing, {.keep = 5}), Steps{});
  EXPECT_EQ(choose_to_remove(listing, {.keep = 9}), Steps{});
  EXPECT_EQ(choose_to_remove(Listing{}, {.keep = 1}), Steps{});
}

TEST(ChooseToRemove, WhatIsNotVerifiedNeitherCountsNorGoes) {
  EXPECT_EQ(choose_to_remove(listing_of({100, 200, 300}, 300), {.keep = 2}), Steps{});
  EXPECT_EQ(choose_to_remove(listing_of({100, 200, 300}, 300), {.keep = 1}), (Steps{100}));
}

TEST(ChooseToRemove, AfterARollbackNeitherTheHighestNorTheLastCommittedGoes) {
  const Listing listing = listing_of({800, 900, 1000, 850});
  EXPECT_EQ(choose_to_remove(listing, {.keep = 1}), (Steps{800, 900}));
  EXPECT_EQ(choose_to_remove(listing, {.keep = 2}), (Steps{800, 900}));
  EXPECT_EQ(choose_to_remove(listing, {.keep = 3}), (Steps{800}));
}

TEST(ListRoot, AStockCheckpointOfTorchIsToldAndNeverRemoved) {
  const testing::TempDir temp;
  const std::string root = temp.path().string();
  temp.write("step-5/.metadata", "torch's");
  temp.write("step-5/__0_0.distcp", "torch's too");
  temp.write("step-6/.metadata", "without data it is none");
  test::save(root, mesh_pieces, {.step = 3});
  const Listing listing = list(temp);
  ASSERT_EQ(listing.steps.size(), 2U);  // the save swept step-6 away
  EXPECT_TRUE(listing.find(5)->stock_dcp && !listing.find(5)->durable && !listing.find(5)->problem);
  EXPECT_FALSE(listing.find(3)->stock_dcp);
  EXPECT_EQ(listing.latest, 3U);
  EXPECT_TRUE(std::filesystem::exists(root + "/step-5/__0_0.distcp"));
  const auto opened = Checkpoint::open(io::system_files(), root, 5);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code(), ErrorCode::unsupported);
  io::FileCalls& calls = io::system_files();
  const io::Directory directory = *calls.open_directory(root);
  EXPECT_EQ(*committed_steps(calls, directory), Steps{3});
  EXPECT_EQ(*committed_steps(calls, directory, StockDcp::counted), (Steps{3, 5}));
  EXPECT_EQ(*newest_whole_step(calls, directory), 3U);
  EXPECT_EQ(*newest_whole_step(calls, directory, StockDcp::counted), 5U);
}

}  // namespace
}  // namespace infercluster::checkpoint
