// SPDX-License-Identifier: Apache-2.0
// The power goes after each single operation of a drain from one tier to the next.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/log.h"
#include "checkpoint/names.h"
#include "checkpoint/saved_test_helpers.h"
#include "checkpoint/segment_writer.h"
#include "checkpoint/tier_drain.h"
#include "os/file.h"
#include "testing/power_cut_files.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::PowerCutFiles;

constexpr std::uint64_t kStep = 5;

DrainOptions small_extents(Exists exists) {
  DrainOptions options;
  options.exists = exists;
  options.copy.extent_bytes = manifest::kBlockBytes;
  options.copy.write.request_bytes = manifest::kBlockBytes;
  options.copy.write.threads = 1;
  return options;
}

// Puts the files of a checkpoint that is there into `root` of the disk that remembers; all of it durable.
void put(PowerCutFiles& files, const io::Directory& root, const fs::path& checkpoint) {
  ASSERT_TRUE(files.make_directory(root, step_name(kStep)).ok());
  const auto step = files.open_directory_in(root, step_name(kStep));
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    const auto text = os::read_small_file(entry.path().string(), 1 << 30);
    ASSERT_TRUE(write_small_file(files, *step, entry.path().filename().string(), *text).ok());
  }
  ASSERT_TRUE(files.sync_directory(*step).ok());
  ASSERT_TRUE(files.sync_directory(root).ok());
}

bool holds(const std::string& root, std::uint64_t seed) {
  test::Memory memory = test::memory_of(test::mesh_pieces(0, 1), 0);
  memory.overwrite();
  return test::open_saved(root, kStep)->restore(memory.targets(), {}).ok() && memory.difference(seed).empty();
}

bool is_there(const std::string& root) {
  return is_whole(io::system_files(), *io::system_files().open_directory(root), kStep);
}

// `older`: the lower tier has another save of the step, which the drain replaces.
void cut_after_any_operation(bool older) {
  set_log_level(LogLevel::off);
  const testing::TempDir saved;
  const testing::TempDir before;
  test::save(saved.path().string(), test::mesh_pieces, {.step = kStep, .world = 3, .seed = 2});
  test::save(before.path().string(), test::mesh_pieces, {.step = kStep, .world = 2, .seed = 1});
  const testing::TempDir live;
  PowerCutFiles files;
  const auto disk_root = files.open_directory(live.path().string());
  ASSERT_TRUE(files.make_directory(*disk_root, "fast").ok());
  ASSERT_TRUE(files.make_directory(*disk_root, "root").ok());
  const auto fast = files.open_directory_in(*disk_root, "fast");
  const auto root = files.open_directory_in(*disk_root, "root");
  ASSERT_NO_FATAL_FAILURE(put(files, *fast, saved.path() / step_name(kStep)));
  if (older) {
    ASSERT_NO_FATAL_FAILURE(put(files, *root, before.path() / step_name(kStep)));
  }
  ASSERT_TRUE(files.sync_directory(*disk_root).ok());
  const std::size_t first = files.operations();
  const DrainOptions options = small_extents(Exists::replace);
  const auto report = drain_step(files, *fast, kStep, *root, options);
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  const std::size_t count = files.operations();
  ASSERT_GT(count - first, 40U);
  // What is laid out need not be on a disk.
  if (fs::is_directory("/dev/shm")) {
    ASSERT_EQ(::setenv("TMPDIR", "/dev/shm", 1), 0);
  }
  for (std::size_t cut = first; cut <= count; ++cut) {
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      const testing::TempDir disk;
      files.lay_out(cut, PowerCutFiles::keep_of(seed), cut * 1000 + seed, disk.path());
      SCOPED_TRACE("power cut after operation " + std::to_string(cut) + " of " + std::to_string(count) + ", seed " +
                   std::to_string(cut * 1000 + seed));
      const std::string lower = disk.file("root");
      const bool there = is_there(lower);
      ASSERT_TRUE(there || (cut < count && !older));
      if (there) {
        ASSERT_TRUE(holds(lower, 2) || (older && cut < count && holds(lower, 1)));
      }
      const auto from = io::system_files().open_directory(disk.file("fast"));
      const auto to = io::system_files().open_directory(lower);
      const auto resumed = drain_step(io::system_files(), *from, kStep, *to, options);
      ASSERT_TRUE(resumed.ok()) << resumed.error().to_string();
      ASSERT_TRUE(holds(lower, 2));
    }
  }
  set_log_level(LogLevel::warning);
}

TEST(TierPowerCut, AfterAnyOperationTheNextDrainEndsIt) {
  cut_after_any_operation(false);
}
TEST(TierPowerCut, AfterAnyOperationOfAReplacementTheOldOrTheNewIsThere) {
  cut_after_any_operation(true);
}

}  // namespace
}  // namespace infercluster::checkpoint
