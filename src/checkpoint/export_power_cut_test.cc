// SPDX-License-Identifier: Apache-2.0
// The power goes after each single operation of an export.
#include <gtest/gtest.h>

#include <map>

#include "checkpoint/export.h"
#include "checkpoint/saved_test_helpers.h"
#include "os/file.h"
#include "testing/power_cut_files.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

using testing::PowerCutFiles;

enum class Destination : std::uint8_t { absent, empty };

std::map<std::string, std::string> files_of(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  if (!std::filesystem::is_directory(folder)) return files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(".")) files[name] = *os::read_small_file(entry.path().string(), 1 << 30);
  }
  return files;
}

class ExportPowerCut : public ::testing::TestWithParam<Destination> {};

TEST_P(ExportPowerCut, WhatHasItsFinalNameIsWhole) {
  const testing::TempDir saved;
  test::save(saved.path().string(), test::mesh_pieces, {.world = 2});
  const auto checkpoint = test::open_saved(saved.path().string(), 1);
  std::vector<ExportedTensor> tensors;
  for (const auto& [name, tensor] : checkpoint->tensors())
    tensors.push_back({{name, tensor.dtype, tensor.shape}, name});

  const testing::TempDir live;
  const bool absent = GetParam() == Destination::absent;
  const std::string destination = absent ? live.file("model") : live.path().string();
  PowerCutFiles files;
  ExportOptions options;
  options.shard_bytes = 50'000;
  options.window_bytes = 40'000;
  const auto report = export_to(files, *checkpoint, tensors, destination, options);
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  const std::map<std::string, std::string> whole = files_of(destination);
  ASSERT_EQ(whole.size(), report->files.size() + 1);

  const std::size_t count = files.operations();
  ASSERT_GT(count, 20U);
  for (std::size_t cut = 0; cut <= count; ++cut) {
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      const auto keep = PowerCutFiles::keep_of(seed);
      const testing::TempDir disk;
      files.lay_out(cut, keep, cut * 1000 + seed, disk.path());
      SCOPED_TRACE("power cut after operation " + std::to_string(cut) + " of " + std::to_string(count));
      const std::map<std::string, std::string> found = files_of(absent ? disk.path() / "model" : disk.path());
      for (const auto& [name, content] : found) ASSERT_TRUE(content == whole.at(name)) << name << " is not whole";
      const bool claims_all =
          absent ? std::filesystem::exists(disk.path() / "model") : found.contains(kExportIndexName);
      if (claims_all || cut == count) {
        ASSERT_EQ(found.size(), whole.size());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Destination, ExportPowerCut, ::testing::Values(Destination::absent, Destination::empty),
                         [](const auto& tested) { return tested.param == Destination::absent ? "Absent" : "Empty"; });

}  // namespace
}  // namespace infercluster::checkpoint
