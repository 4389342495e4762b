// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/export.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>

#include "checkpoint/saved_test_helpers.h"
#include "safetensors/header.h"
#include "safetensors/index.h"
#include "testing/fault_files.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

using test::byte_of;
using test::mesh_pieces;
using test::open_saved;
using testing::FaultFiles;
using testing::FileFault;

constexpr std::uint64_t kSeed = 7;

std::vector<ExportedTensor> everything(const Checkpoint& checkpoint) {
  std::vector<ExportedTensor> tensors;
  for (const auto& [name, tensor] : checkpoint.tensors()) tensors.push_back({{name, tensor.dtype, tensor.shape}, name});
  return tensors;
}

// Tensors of a file that do not hold the bytes that were saved, and how many tensors it has.
std::pair<std::vector<std::string>, std::size_t> differences(const std::string& path) {
  const std::string text = *os::read_small_file(path, std::uint64_t{1} << 30);
  const auto bytes = std::as_bytes(std::span(text));
  const auto length = safetensors::parse_header_length(bytes.first(8), bytes.size());
  EXPECT_TRUE(length.ok());
  const auto header = safetensors::parse_header(bytes.subspan(8, *length), bytes.size());
  EXPECT_TRUE(header.ok());
  std::vector<std::string> wrong;
  for (const safetensors::Tensor& tensor : header->tensors()) {
    bool equal = true;
    for (std::uint64_t i = 0; i < tensor.bytes(); ++i)
      equal = equal && bytes[header->data_begin() + tensor.begin + i] == byte_of(tensor.name, kSeed, i);
    if (!equal) wrong.push_back(tensor.name);
  }
  return {wrong, header->tensors().size()};
}

std::set<std::string> entries_of(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

class ExportTest : public ::testing::Test {
 protected:
  void save(std::uint64_t world) {
    test::save(root_, mesh_pieces, {.world = world, .seed = kSeed});
    checkpoint_ = open_saved(root_, 1);
  }
  Result<ExportReport> run(const ExportOptions& options = {}, io::FileCalls& calls = io::system_files()) {
    return export_to(calls, *checkpoint_, everything(*checkpoint_), destination_, options);
  }

  testing::TempDir temp_;
  testing::TempDir out_;
  std::string root_ = temp_.path().string();
  std::string destination_ = out_.file("model");
  std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_F(ExportTest, ShardsOfAnyMeshComeOutWholeWithinTheWindow) {
  for (const std::uint64_t world : {1U, 3U, 4U, 8U}) {
    std::filesystem::remove_all(root_ + "/step-1");
    save(world);
    for (const std::uint64_t window : {5'000U, 40'000U, 1U << 20}) {
      std::filesystem::remove_all(destination_);
      ExportOptions options;
      options.window_bytes = window;
      const auto report = run(options);
      ASSERT_TRUE(report.ok()) << report.error().to_string();
      EXPECT_LE(report->memory_bytes, window);
      EXPECT_GT(report->memory_bytes, 0U);
      EXPECT_EQ(report->tensors, 6U);
      ASSERT_EQ(report->files.size(), 1U);
      EXPECT_EQ(report->files[0].path, destination_ + "/model.safetensors");
      EXPECT_EQ(differences(report->files[0].path), std::pair(std::vector<std::string>{}, std::size_t{6}));
      EXPECT_EQ(entries_of(destination_), std::set<std::string>{"model.safetensors"});
      EXPECT_EQ(entries_of(out_.path().string()), std::set<std::string>{"model"});
    }
  }
}

TEST_F(ExportTest, SeveralFilesHaveAnIndex) {
  save(4);
  ExportOptions options;
  options.shard_bytes = 50'000;
  options.window_bytes = 10'000;
  const auto report = run(options);
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_GT(report->files.size(), 1U);
  EXPECT_EQ(report->index_path, destination_ + "/model.safetensors.index.json");
  const auto index = safetensors::parse_index(*os::read_small_file(report->index_path, 1 << 20));
  ASSERT_TRUE(index.ok());
  EXPECT_EQ(index->total_size, report->bytes);
  EXPECT_EQ(index->weight_map.size(), 6U);
  EXPECT_EQ(index->shards().size(), report->files.size());
  std::size_t tensors = 0;
  for (const ExportReport::File& file : report->files) {
    const auto [wrong, count] = differences(file.path);
    EXPECT_EQ(wrong, std::vector<std::string>{});
    EXPECT_EQ(count, file.tensors);
    EXPECT_EQ(std::filesystem::file_size(file.path), file.bytes);
    tensors += count;
  }
  EXPECT_EQ(tensors, 6U);
}

TEST_F(ExportTest, AFlippedByteLeavesNoOutput) {
  save(4);
  test::flip(root_ + "/step-1/node-2.0.1.safetensors", -1);
  const auto report = run();
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code(), ErrorCode::corrupt);
  EXPECT_EQ(report.error().path(), root_ + "/step-1/node-2.0.1.safetensors");
  EXPECT_FALSE(report.error().tensor().empty());
  EXPECT_EQ(entries_of(out_.path().string()), std::set<std::string>{});
}

TEST_F(ExportTest, ADestinationWithFilesIsRefusedUnlessAskedAndWeightsAreNeverReplaced) {
  save(1);
  out_.write("model/config.json", "{}");
  const auto refused = run();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  EXPECT_NE(refused.error().to_string().find("config.json"), std::string::npos);
  ExportOptions merge;
  merge.other_files = OtherFiles::allow;
  merge.shard_bytes = 50'000;
  const auto merged = run(merge);
  ASSERT_TRUE(merged.ok()) << merged.error().to_string();
  EXPECT_EQ(*os::read_small_file(out_.file("model/config.json"), 10), "{}");
  for (const ExportReport::File& file : merged->files)
    EXPECT_EQ(differences(file.path).first, std::vector<std::string>{});
  const std::set<std::string> before = entries_of(destination_);
  EXPECT_EQ(before.size(), merged->files.size() + 2);
  const auto again = run(merge);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(entries_of(destination_), before);
}

TEST_F(ExportTest, AnEmptyFolderIsFilledInPlace) {
  save(1);
  std::filesystem::create_directory(destination_);
  destination_ += "/";
  const auto report = run();
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_EQ(entries_of(destination_), std::set<std::string>{"model.safetensors"});
}

TEST_F(ExportTest, PlacesThatAreNoneAreRefused) {
  save(1);
  destination_ = out_.file("no/such/model");
  EXPECT_EQ(run().error().code(), ErrorCode::not_found);
  destination_ = out_.write("file", "x");
  EXPECT_FALSE(run().ok());
  EXPECT_EQ(*os::read_small_file(destination_, 10), "x");
  destination_ = "";
  EXPECT_EQ(run().error().code(), ErrorCode::invalid_argument);
}

// Case T01: every call of the file system fails once; then there is no output, and an error.
TEST_F(ExportTest, WhateverFailsNothingHalfIsLeft) {
  save(2);
  ExportOptions options;
  options.shard_bytes = 50'000;
  options.window_bytes = 20'000;
  for (const bool exists : {false, true}) {
    const std::set<std::string> nothing = exists ? std::set<std::string>{"model"} : std::set<std::string>{};
    const auto fresh = [&] {
      std::filesystem::remove_all(destination_);
      if (exists) std::filesystem::create_directory(destination_);
    };
    fresh();
    FaultFiles counting({});
    ASSERT_TRUE(run(options, counting).ok());
    const std::vector<std::string> calls = counting.calls();
    ASSERT_GT(calls.size(), 20U);
    std::uint64_t last = 0;  // the rename after which it is there
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (calls[i].starts_with("rename ")) last = i;
    }
    for (std::uint64_t number = 0; number < calls.size(); ++number) {
      if (calls[number].starts_with("size_of ")) continue;  // is it there already? An error says: no
      fresh();
      FaultFiles failing([number](std::uint64_t n, std::string_view, const std::string&) {
        return FileFault{.error = n == number ? ENOSPC : 0};
      });
      const auto report = run(options, failing);
      EXPECT_FALSE(report.ok()) << calls[number];
      if (number > last) continue;  // whole, but perhaps not durable
      EXPECT_EQ(entries_of(out_.path().string()), nothing) << calls[number];
      if (exists) {
        EXPECT_EQ(entries_of(destination_), std::set<std::string>{}) << calls[number];
      }
    }
  }
}

TEST_F(ExportTest, ShortWritesAreResumedAndACancelledExportLeavesNothing) {
  save(2);
  FaultFiles slow([](std::uint64_t, std::string_view, const std::string&) { return FileFault{.write_most = 777}; });
  const auto report = run({}, slow);
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_EQ(differences(report->files[0].path).first, std::vector<std::string>{});
  std::filesystem::remove_all(destination_);
  ExportOptions options;
  options.window_bytes = 20'000;
  std::uint64_t most = 0;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_LE(done, total);
    most = std::max(most, done);
    return done < total / 2;
  };
  const auto cancelled = run(options);
  ASSERT_FALSE(cancelled.ok());
  EXPECT_EQ(cancelled.error().code(), ErrorCode::cancelled);
  EXPECT_GT(most, 0U);
  EXPECT_EQ(entries_of(out_.path().string()), std::set<std::string>{});
}

}  // namespace
}  // namespace infercluster::checkpoint
