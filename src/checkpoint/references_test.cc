// SPDX-License-Identifier: Apache-2.0
// Saves that write only what changed, and refer to the last checkpoint for the rest.
#include "checkpoint/references.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <map>

#include "base/log.h"
#include "base/units.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/export.h"
#include "checkpoint/saved_test_helpers.h"
#include "testing/fault_files.h"
#include "testing/power_cut_files.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

using test::Dtype;
using test::flip;
using test::Memory;
using test::open_saved;
using test::whole;
using testing::FaultFiles;
using testing::FileFault;
using testing::PowerCutFiles;

constexpr std::uint64_t kPageBytes = 100'000;

std::string page_name(std::uint64_t id) {
  return "kv/" + std::to_string(id);
}

using Generations = std::vector<std::uint64_t>;  // by page id; its content follows from it

// Pages, and a tensor without a generation.
class Server {
 public:
  explicit Server(Generations generations, std::uint64_t seed = 1, std::uint64_t page_bytes = kPageBytes)
      : generations_(std::move(generations)), seed_(seed) {
    for (std::uint64_t id = 0; id < generations_.size(); ++id) {
      pages_.emplace_back().add(whole(page_name(id), Dtype::u8, {page_bytes}), generations_[id]);
    }
    table_.add(whole("table", Dtype::f32, {25}), seed);
  }
  [[nodiscard]] State state() const {
    State state = table_.state();
    for (std::size_t id = 0; id < pages_.size(); ++id) {
      HostPiece piece = pages_[id].state().pieces[0];
      piece.generation = generations_[id];
      state.pieces.push_back(std::move(piece));
    }
    return state;
  }
  // What keeps a step from coming back as this; empty: nothing.
  [[nodiscard]] std::string problem(const std::string& root, std::uint64_t step) {
    auto checkpoint = Checkpoint::open(io::system_files(), root, step);
    if (!checkpoint.ok()) return checkpoint.error().to_string();
    const auto verified = (*checkpoint)->verify({});
    if (!verified.ok()) return verified.error().to_string();
    table_.overwrite();
    std::vector<Target> targets = table_.targets();
    for (Memory& page : pages_) {
      page.overwrite();
      targets.push_back(page.targets()[0]);
    }
    const auto report = (*checkpoint)->restore(targets, {});
    if (!report.ok()) return report.error().to_string();
    std::string found = table_.difference(seed_);
    for (std::size_t id = 0; id < pages_.size(); ++id) found += pages_[id].difference(generations_[id]);
    return found;
  }

 private:
  Generations generations_;
  std::uint64_t seed_;
  std::vector<Memory> pages_;
  Memory table_;
};

std::uint64_t links_of(const std::string& path) {
  return std::filesystem::hard_link_count(path);
}

class ReferencesTest : public ::testing::Test {
 protected:
  std::unique_ptr<Checkpointer> open(std::uint64_t keep = 0, io::FileCalls* calls = nullptr) {
    Options options;
    options.retention.keep = keep;
    options.calls = calls;
    return *Checkpointer::open(root_, options);
  }
  static SaveReport save(Checkpointer& checkpointer, std::uint64_t step, const Server& server,
                         Exists exists = Exists::error) {
    const auto saved = checkpointer.save(step, server.state(), {Wait::until_durable, exists});
    EXPECT_TRUE(saved.ok()) << saved.error().to_string();
    checkpointer.wait_idle();
    return saved.ok() ? (*saved)->report() : SaveReport{};
  }

  testing::TempDir temp_;
  std::string root_ = temp_.path().string();
};

TEST_F(ReferencesTest, OnlyWhatChangedIsWritten) {
  auto checkpointer = open();
  Server first({1, 1, 1, 1, 1, 1});
  Server second({1, 2, 1, 1, 1, 1}, 2);
  Server third({1, 3, 1, 1, 1, 1, 1}, 3);
  const SaveReport one = save(*checkpointer, 1, first);
  EXPECT_EQ(one.referred, 0U);
  EXPECT_GT(one.bytes, 6 * kPageBytes);
  const SaveReport two = save(*checkpointer, 2, second);
  EXPECT_EQ(two.referred, 5U);
  EXPECT_EQ(two.bytes_referred, 5 * kPageBytes);
  EXPECT_GT(two.bytes, kPageBytes);
  EXPECT_LT(two.bytes, kPageBytes + 2'000);
  EXPECT_EQ(std::filesystem::file_size(root_ + "/step-2/node-0.0.1.safetensors"), two.bytes);
  EXPECT_EQ(links_of(root_ + "/step-2/node-0.1.1.safetensors"), 2U);
  const SaveReport three = save(*checkpointer, 3, third);
  EXPECT_EQ(three.referred, 5U);
  EXPECT_LT(three.bytes, 2 * kPageBytes + 2'000);
  EXPECT_EQ(links_of(root_ + "/step-3/node-0.1.1.safetensors"), 3U);
  EXPECT_EQ(first.problem(root_, 1), "");
  EXPECT_EQ(second.problem(root_, 2), "");
  EXPECT_EQ(third.problem(root_, 3), "");
}

TEST_F(ReferencesTest, AllUnchangedWritesNoSegmentButTheOtherTensors) {
  auto checkpointer = open();
  Server server({7, 8});
  State state = server.state();
  state.pieces.erase(state.pieces.begin());  // the table
  ASSERT_TRUE(checkpointer->save(1, state, {.wait = Wait::until_durable}).ok());
  const auto second = checkpointer->save(2, state, {.wait = Wait::until_durable});
  ASSERT_TRUE(second.ok()) << second.error().to_string();
  EXPECT_EQ((*second)->report().bytes, 0U);
  EXPECT_FALSE(std::filesystem::exists(root_ + "/step-2/node-0.0.1.safetensors"));
  EXPECT_TRUE(open_saved(root_, 2)->verify({}).ok());
  EXPECT_EQ(open_saved(root_, 2)->tensors().size(), 2U);
}

TEST_F(ReferencesTest, RemovingTheEarlierOneKeepsTheLaterWhole) {
  auto checkpointer = open(1);
  for (std::uint64_t step = 1; step <= 5; ++step) {
    Server server({1, step, 1, 1}, step);
    EXPECT_EQ(save(*checkpointer, step, server).referred, step == 1 ? 0U : 3U);
    EXPECT_EQ(*checkpointer->steps(), std::vector<std::uint64_t>{step});
    EXPECT_EQ(server.problem(root_, step), "");
  }
  EXPECT_EQ(links_of(root_ + "/step-5/node-0.1.1.safetensors"), 1U);
}

TEST_F(ReferencesTest, AStepMayReferToTheOneThatItReplaces) {
  auto checkpointer = open();
  save(*checkpointer, 1, Server({1, 1, 1}));
  Server second({1, 1, 2}, 2);
  EXPECT_EQ(save(*checkpointer, 1, second, Exists::replace).referred, 2U);
  EXPECT_EQ(second.problem(root_, 1), "");
  Server third({1, 3, 2}, 3);
  EXPECT_EQ(save(*checkpointer, 1, third, Exists::replace).referred, 1U);
  EXPECT_EQ(third.problem(root_, 1), "");
}

TEST_F(ReferencesTest, WhatIsLeftOfASegmentIsWrittenAgainWhenLessThanHalfIsWanted) {
  auto checkpointer = open();
  save(*checkpointer, 1, Server({1, 1, 1, 1, 1}));
  EXPECT_EQ(save(*checkpointer, 2, Server({2, 2, 1, 1, 1})).referred, 3U);
  Server third({2, 2, 3, 1, 1});
  EXPECT_EQ(save(*checkpointer, 3, third).referred, 2U);  // those of step 2; two of five are left of step 1's segment
  EXPECT_EQ(third.problem(root_, 3), "");
}

TEST_F(ReferencesTest, AnotherShapeOrDtypeIsAnotherContent) {
  auto checkpointer = open();
  save(*checkpointer, 1, Server({1, 1}));
  Server other({1, 1}, 1, kPageBytes / 2);
  EXPECT_EQ(save(*checkpointer, 2, other).referred, 0U);
  EXPECT_EQ(other.problem(root_, 2), "");
}

// Another process's numbers say nothing of this one's contents.
TEST_F(ReferencesTest, ANewCheckpointerRefersToNothing) {
  save(*open(), 1, Server({1, 1}));
  EXPECT_EQ(save(*open(), 2, Server({1, 1})).referred, 0U);
}

TEST_F(ReferencesTest, WhileAnEarlierSaveIsOnItsWayAllIsWritten) {
  auto checkpointer = open(1);
  for (std::uint64_t step = 1; step <= 12; ++step) {
    const auto saved = checkpointer->save(step, Server({1, step, 1}, step).state(), {});
    ASSERT_TRUE(saved.ok()) << saved.error().to_string();
  }
  checkpointer->wait_idle();
  EXPECT_EQ(Server({1, 12, 1}, 12).problem(root_, 12), "");
}

TEST_F(ReferencesTest, DamageInALinkedSegmentIsNamedInEachStep) {
  auto checkpointer = open();
  save(*checkpointer, 1, Server({1, 1, 1}));
  Server second({1, 1, 2});
  save(*checkpointer, 2, second);
  flip(root_ + "/step-1/node-0.0.1.safetensors", 150'000);
  EXPECT_NE(second.problem(root_, 2).find("node-0.1.1.safetensors"), std::string::npos) << second.problem(root_, 2);
}

TEST_F(ReferencesTest, ExportFollowsThem) {
  auto checkpointer = open();
  save(*checkpointer, 1, Server({1, 1, 1}));
  save(*checkpointer, 2, Server({1, 2, 1}, 2));
  const auto checkpoint = open_saved(root_, 2);
  std::vector<ExportedTensor> tensors;
  for (const auto& [name, stored] : checkpoint->tensors())
    tensors.push_back({{name, stored.dtype, stored.shape}, name});
  const auto exported = export_to(io::system_files(), *checkpoint, tensors, root_ + "/out", {});
  ASSERT_TRUE(exported.ok()) << exported.error().to_string();
  EXPECT_TRUE(std::filesystem::exists(root_ + "/out/model.safetensors"));
  EXPECT_GT(std::filesystem::file_size(root_ + "/out/model.safetensors"), 3 * kPageBytes);
}

TEST_F(ReferencesTest, WithoutTheEarlierFilesTheSaveFailsAndTheNextWritesAll) {
  auto checkpointer = open();
  Server server({1, 1});
  save(*checkpointer, 1, server);
  std::filesystem::remove_all(root_ + "/step-1");
  save(*open(), 1, Server({5, 5}));  // somebody else's, of the same names
  const auto failed = checkpointer->save(2, server.state(), {.wait = Wait::until_durable});
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().system_errno(), ENOENT);
  EXPECT_NE(failed.error().to_string().find("the next save writes everything"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(root_ + "/step-2"));
  EXPECT_EQ(save(*checkpointer, 3, server).referred, 0U);
  EXPECT_EQ(server.problem(root_, 3), "");
}

// Each call of the second save fails once.
TEST_F(ReferencesTest, EveryCallInTurnMayFail) {
  set_log_level(LogLevel::off);
  Server first({1, 1, 1, 1});
  Server second({1, 2, 1, 1}, 2);
  std::uint64_t failures = 0;
  std::uint64_t links = 0;
  for (std::uint64_t at = 0;; ++at) {
    const testing::TempDir folder;
    const std::string root = folder.path().string();
    std::uint64_t begin = UINT64_MAX;
    FaultFiles calls([&](std::uint64_t number, std::string_view, const std::string&) {
      return begin != UINT64_MAX && number == begin + at ? FileFault{.error = EIO} : FileFault{};
    });
    Options options;
    options.calls = &calls;
    options.retention.keep = 0;
    auto checkpointer = *Checkpointer::open(root, options);
    save(*checkpointer, 1, first);
    begin = calls.calls().size();
    const auto saved = checkpointer->save(2, second.state(), {.wait = Wait::until_durable});
    checkpointer->wait_idle();
    const auto made = calls.calls();
    if (begin + at >= made.size()) break;
    if (!saved.ok()) ++failures;
    if (made[begin + at].starts_with("link_into")) {
      ++links;
      EXPECT_FALSE(saved.ok());
    }
    SCOPED_TRACE("call " + std::to_string(at) + ": " + made[begin + at]);
    EXPECT_EQ(first.problem(root, 1), "");
    if (saved.ok()) {
      EXPECT_EQ(second.problem(root, 2), "");
    }
    checkpointer.reset();
    auto next = *Checkpointer::open(root, {});
    Server third({1, 2, 3, 1}, 3);
    EXPECT_TRUE(next->save(3, third.state(), {.wait = Wait::until_durable}).ok());
    EXPECT_EQ(third.problem(root, 3), "");
    if (HasFailure()) break;
  }
  EXPECT_GT(failures, 15U);
  EXPECT_EQ(links, 1U);
  set_log_level(LogLevel::warning);
}

// The power goes after each operation of saves that refer to each other, with the earlier ones removed.
TEST_F(ReferencesTest, ACutOfThePowerLeavesWholeCheckpointsAlone) {
  set_log_level(LogLevel::off);
  constexpr std::uint64_t kSmall = 3'000;
  const std::vector<Generations> saves{{1, 1, 1, 1}, {1, 2, 1, 1}, {1, 2, 3, 1}, {1, 2, 3, 4}};
  PowerCutFiles files;
  std::vector<std::size_t> durable_after;
  {
    auto checkpointer = open(1, &files);
    for (std::uint64_t i = 0; i < saves.size(); ++i) {
      const auto saved =
          checkpointer->save(i + 1, Server(saves[i], i + 1, kSmall).state(), {.wait = Wait::until_durable});
      ASSERT_TRUE(saved.ok()) << saved.error().to_string();
      durable_after.push_back(files.operations());
      checkpointer->wait_idle();
      ASSERT_EQ((*saved)->report().referred > 0, i > 0);
    }
  }
  for (std::size_t cut = 0; cut <= files.operations(); ++cut) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      const auto keep = PowerCutFiles::keep_of(seed);
      const testing::TempDir disk;
      files.lay_out(cut, keep, cut * 10 + seed, disk.path());
      SCOPED_TRACE("cut after " + std::to_string(cut) + ", seed " + std::to_string(seed));
      auto checkpointer = *Checkpointer::open(disk.path().string(), {});
      std::uint64_t newest = 0;
      const auto steps = checkpointer->steps();
      ASSERT_TRUE(steps.ok());
      for (const std::uint64_t step : *steps) {
        newest = step;
        ASSERT_EQ(Server(saves[step - 1], step, kSmall).problem(disk.path().string(), step), "");
      }
      for (std::uint64_t i = 0; i < saves.size(); ++i) {
        if (durable_after[i] <= cut) {
          ASSERT_GE(newest, i + 1);
        }
      }
    }
  }
  set_log_level(LogLevel::warning);
}

// A job of random changes: what is kept on disk stays within twice what is live, in a bounded number of segments.
TEST_F(ReferencesTest, ManySavesTakeNeitherMoreRoomNorMoreSegmentsWithoutEnd) {
  auto checkpointer = open(1);
  Generations generations(40, 1);
  std::uint64_t random = 12'345;
  for (std::uint64_t step = 1; step <= 60; ++step) {
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    generations[(random >> 33) % generations.size()] = step;
    Server server(generations, step, 4'000);
    save(*checkpointer, step, server);
    ASSERT_EQ(server.problem(root_, step), "");
    const auto checkpoint = open_saved(root_, step);
    std::uint64_t bytes = 0;
    for (const manifest::Segment& segment : checkpoint->indexes()[0].segments) bytes += segment.bytes;
    EXPECT_LE(checkpoint->indexes()[0].segments.size(), kReferencedSegmentsMax + 1);
    EXPECT_LE(bytes, 2 * (generations.size() * 4'000 + 10'000));
  }
}

}  // namespace
}  // namespace infercluster::checkpoint
