// SPDX-License-Identifier: Apache-2.0
#include "infercluster/checkpoint_tools.h"

#include <gtest/gtest.h>

#include "checkpoint/saved_test_helpers.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

using test::Dtype;
using test::mesh_pieces;
using test::whole;

TEST(OpenAt, TakesTheLatestAStepOrACheckpointsOwnFolder) {
  const testing::TempDir temp;
  const std::string root = temp.path().string();
  for (const std::uint64_t step : {1U, 2U, 3U}) test::save(root, mesh_pieces, {.step = step});
  std::filesystem::remove(root + "/step-3/COMMIT");
  const auto latest = open_at(root, std::nullopt);
  ASSERT_TRUE(latest.ok()) << latest.error().to_string();
  EXPECT_EQ((*latest)->commit().step, 2U);
  EXPECT_EQ((*open_at(root, 1))->commit().step, 1U);
  std::filesystem::rename(root + "/step-1", root + "/by any name");
  EXPECT_EQ((*open_at(root + "/by any name", std::nullopt))->commit().step, 1U);
  EXPECT_TRUE(open_at(root + "/by any name", 1).ok());
  EXPECT_EQ(open_at(root + "/by any name", 2).error().code(), ErrorCode::not_found);
  const auto absent = open_at(root, 77);
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.error().code(), ErrorCode::not_found);
  EXPECT_NE(absent.error().hint().find("checkpoint ls"), std::string::npos);
  const auto unfinished = open_at(root, 3);
  ASSERT_FALSE(unfinished.ok());
  EXPECT_EQ(unfinished.error().code(), ErrorCode::not_found);
  EXPECT_EQ(list(root + "/by any name").error().code(), ErrorCode::invalid_argument);
  const testing::TempDir empty;
  EXPECT_EQ(open_at(empty.path().string(), std::nullopt).error().code(), ErrorCode::not_found);
}

Pieces two_large(std::uint64_t, std::uint64_t) {
  return {whole("a", Dtype::u8, {200'000}), whole("b", Dtype::u8, {9'000'000})};
}

TEST(VerifyCheckpoint, NamesTheFirstBadBlockOfEachFileAndGoesOn) {
  const testing::TempDir temp;
  const std::string root = temp.path().string();
  test::save(root,
             [](std::uint64_t rank, std::uint64_t) {
               return Pieces{whole("x" + std::to_string(rank), Dtype::u8, {9'000'000})};
             },
             {.world = 3});
  const auto checkpoint = test::open_saved(root, 1);
  const auto good = verify(*checkpoint);
  ASSERT_TRUE(good.ok()) << good.error().to_string();
  EXPECT_TRUE(good->good());
  EXPECT_EQ(good->segments.size(), 3U);
  EXPECT_GT(good->bytes, 27'000'000U);
  test::flip(root + "/step-1/node-0.0.1.safetensors", 8'000'000);
  test::flip(root + "/step-1/node-0.0.1.safetensors", 5'000'000);
  test::flip(root + "/step-1/node-0.0.1.safetensors", 5'000'001);
  std::filesystem::remove(root + "/step-1/node-1.0.1.safetensors");
  const auto bad = verify(*checkpoint);
  ASSERT_TRUE(bad.ok()) << bad.error().to_string();
  EXPECT_FALSE(bad->good());
  const SegmentVerdict& flipped = bad->segments[0];
  ASSERT_TRUE(flipped.first_error.has_value());
  EXPECT_EQ(flipped.first_error->code(), ErrorCode::corrupt);
  EXPECT_EQ(flipped.first_error->path(), root + "/step-1/node-0.0.1.safetensors");
  EXPECT_EQ(flipped.first_error->tensor(), "x0");
  EXPECT_EQ(flipped.first_error->offset(), 5'000'000U / 65'536 * 65'536);
  EXPECT_EQ(flipped.bad_blocks, 2U);
  ASSERT_TRUE(bad->segments[1].first_error.has_value());
  EXPECT_EQ(bad->segments[1].first_error->code(), ErrorCode::not_found);
  EXPECT_FALSE(bad->segments[2].first_error.has_value());
}

TEST(VerifyCheckpoint, ACutFileIsNamedWithBothSizesAndAnEndCanBeAskedFor) {
  const testing::TempDir temp;
  const std::string root = temp.path().string();
  test::save(root, two_large, {});
  const auto checkpoint = test::open_saved(root, 1);
  const auto cancelled = verify(*checkpoint, [](std::uint64_t, std::uint64_t) { return false; });
  ASSERT_FALSE(cancelled.ok());
  EXPECT_EQ(cancelled.error().code(), ErrorCode::cancelled);
  const std::string segment = root + "/step-1/node-0.0.1.safetensors";
  const auto size = std::filesystem::file_size(segment);
  std::filesystem::resize_file(segment, 4 * 65'536);  // on the grid: no block that is there is bad
  const auto cut = verify(*checkpoint);
  ASSERT_TRUE(cut.ok());
  ASSERT_TRUE(cut->segments[0].first_error.has_value());
  EXPECT_EQ(cut->segments[0].bad_blocks, 0U);
  const std::string message = cut->segments[0].first_error->message();
  EXPECT_NE(message.find(std::to_string(size)), std::string::npos) << message;
  EXPECT_NE(message.find("262144"), std::string::npos) << message;
}

TEST(Select, PatternsChooseAndThePrefixIsTakenOff) {
  const testing::TempDir temp;
  test::save(temp.path().string(),
             [](std::uint64_t, std::uint64_t) {
               return Pieces{whole("model.a.weight", Dtype::u8, {1}), whole("model.b.weight", Dtype::u8, {1}),
                             whole("modelx", Dtype::u8, {1}), whole("optim.a", Dtype::u8, {1})};
             },
             {});
  const auto checkpoint = test::open_saved(temp.path().string(), 1);
  const auto names = [&](const Selection& selection) {
    std::vector<std::string> found;
    const auto selected = select(*checkpoint, selection);
    if (!selected.ok()) return std::vector<std::string>{std::string(name_of(selected.error().code()))};
    for (const ExportedTensor& tensor : *selected) found.push_back(tensor.source.name + ">" + tensor.name);
    return found;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names({}).size(), 4U);
  EXPECT_EQ(names({{}, "model."}), (Names{"model.a.weight>a.weight", "model.b.weight>b.weight"}));
  EXPECT_EQ(names({{"*.a*"}, ""}), (Names{"model.a.weight>model.a.weight", "optim.a>optim.a"}));
  EXPECT_EQ(names({{"*.a*"}, "optim."}), (Names{"optim.a>a"}));
  EXPECT_EQ(names({{"*.a*", "nothing*"}, ""}), (Names{"not found"}));
  EXPECT_EQ(names({{}, "nothing."}), (Names{"not found"}));
  EXPECT_EQ(names({{}, "optim.a"}), (Names{"invalid argument"}));
}

TEST(RemoveSteps, TriesAllAndLeavesWhatHoldsFilesOfOthers) {
  const testing::TempDir temp;
  const std::string root = temp.path().string();
  for (const std::uint64_t step : {1U, 2U, 3U, 4U}) test::save(root, mesh_pieces, {.step = step});
  temp.write("step-1/notes.txt", "not ours");
  const auto listing = list(root);
  ASSERT_TRUE(listing.ok());
  const std::vector<std::uint64_t> chosen = choose_to_remove(*listing, {.keep = 1});
  EXPECT_EQ(chosen, (std::vector<std::uint64_t>{1, 2, 3}));
  const auto removals = remove(root, chosen);
  ASSERT_TRUE(removals.ok());
  ASSERT_EQ(removals->size(), 3U);
  EXPECT_TRUE((*removals)[0].error.has_value());
  EXPECT_FALSE((*removals)[1].error.has_value());
  EXPECT_FALSE((*removals)[2].error.has_value());
  EXPECT_TRUE(std::filesystem::exists(root + "/step-1/COMMIT"));
  EXPECT_FALSE(std::filesystem::exists(root + "/step-2"));
  EXPECT_TRUE(verify(*test::open_saved(root, 4))->good());
  EXPECT_TRUE(list(root)->trash.empty());
  EXPECT_FALSE((*remove(root, {2}))[0].error.has_value());  // gone already
}

}  // namespace
}  // namespace infercluster::checkpoint
