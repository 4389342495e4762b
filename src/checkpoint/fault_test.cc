// SPDX-License-Identifier: Apache-2.0
// Each file-system call of a save fails once: the error names it, the checkpoints before it stay, the next save works.
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <set>

#include "checkpoint/checkpoint_test_helpers.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/names.h"
#include "testing/fault_files.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

using test::Dtype;
using test::Memory;
using test::whole;
using testing::FaultFiles;
using testing::FileFault;

Memory model(std::uint64_t seed) {
  Memory memory;
  memory.add(whole("w", Dtype::f32, {100, 70}), seed);
  memory.add(whole("b", Dtype::u8, {70'001}), seed);
  return memory;
}

// What keeps the step from being loaded with the bytes of `seed`; empty: nothing.
std::string problem(const std::string& root, std::uint64_t step, std::uint64_t seed) {
  auto checkpoint = Checkpoint::open(io::system_files(), root, step);
  if (!checkpoint.ok()) return checkpoint.error().to_string();
  Memory memory = model(0);
  memory.overwrite();
  const auto report = (*checkpoint)->restore(memory.targets(), {});
  return report.ok() ? memory.difference(seed) : report.error().to_string();
}

class Faults : public test::OnEachDevice {
 protected:
  std::unique_ptr<Checkpointer> open(io::FileCalls& calls, std::uint64_t keep = 0) {
    Options options;
    options.calls = &calls;
    options.retention.keep = keep;
    return *Checkpointer::open(root_, options);
  }
  void save_first() {
    auto checkpointer = open(io::system_files());
    ASSERT_TRUE(checkpointer->save(1, model(1).state(), {.wait = Wait::until_durable}).ok());
  }
  void fail_every_call(int error);
  [[nodiscard]] std::set<std::string> entries() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(root_)) names.insert(entry.path().filename());
    return names;
  }

  testing::TempDir temp_;
  std::string root_ = temp_.path().string();
};

std::size_t count_calls(const std::string& root) {
  FaultFiles counting({});
  Options options;
  options.calls = &counting;
  options.retention.keep = 0;
  auto checkpointer = Checkpointer::open(root, options);
  EXPECT_TRUE((*checkpointer)->save(2, model(2).state(), {.wait = Wait::until_durable}).ok());
  (*checkpointer)->wait_idle();
  return counting.calls().size();
}

void Faults::fail_every_call(int error) {
  const testing::TempDir clean;
  const std::size_t count = count_calls(clean.path().string());
  ASSERT_GT(count, 25U);
  int failures = 0;
  for (std::size_t at = 1; at < count; ++at) {  // 0 opens the root
    const testing::TempDir temp;
    root_ = temp.path().string();
    save_first();
    std::string failed;
    FaultFiles faulty([&](std::uint64_t number, std::string_view call, const std::string& path) {
      if (number != at) return FileFault{};
      failed = std::string(call) + " " + path;
      return FileFault{.error = error};
    });
    auto checkpointer = open(faulty);
    const auto save = checkpointer->save(2, model(2).state(), {.wait = Wait::until_durable});
    checkpointer->wait_idle();
    ASSERT_EQ(problem(root_, 1, 1), "") << "call " << at << ": " << failed;
    if (save.ok()) {
      EXPECT_EQ(problem(root_, 2, 2), "") << "call " << at << ": " << failed;
    } else {
      ++failures;
      EXPECT_EQ(save.error().system_errno(), error) << failed << ": " << save.error().to_string();
      EXPECT_FALSE(save.error().path().empty()) << failed;
      EXPECT_EQ(save.error().message().find("rank 0: "), 0U) << save.error().message();
      // Nothing but a whole checkpoint, or none. (The directory of one may be left when its removal failed.)
      const auto newest = checkpointer->latest();
      ASSERT_TRUE(newest.ok() && *newest) << failed;
      if (**newest == 2) {
        EXPECT_EQ(problem(root_, 2, 2), "") << "call " << at << ": " << failed;
      }
    }
    auto next = open(io::system_files());
    const auto again = next->save(2, model(3).state(), {Wait::until_durable, Exists::replace});
    ASSERT_TRUE(again.ok()) << "call " << at << ": " << failed << ": " << again.error().to_string();
    next->wait_idle();
    EXPECT_EQ(problem(root_, 2, 3), "") << "call " << at << ": " << failed;
    EXPECT_EQ(entries(), (std::set<std::string>{"step-1", "step-2"})) << "call " << at << ": " << failed;
  }
  EXPECT_GT(failures, 15);
}

TEST_P(Faults, OfEveryCallInTurnByABrokenDisk) {
  fail_every_call(EIO);
}
TEST_P(Faults, OfEveryCallInTurnByAQuota) {
  fail_every_call(EDQUOT);
}

// The first cause (errno, path) reaches the caller; what was written of the save is gone; `latest` is the one before.
TEST_P(Faults, AFullDiskLeavesNothingAndIsNamed) {
  save_first();
  FaultFiles full([](std::uint64_t, std::string_view call, const std::string& path) {
    return call == "reserve" && path.find("step-2") != std::string::npos ? FileFault{.error = ENOSPC} : FileFault{};
  });
  auto checkpointer = open(full);
  const auto save = checkpointer->save(2, model(2).state(), {.wait = Wait::until_durable});
  ASSERT_FALSE(save.ok());
  EXPECT_EQ(save.error().system_errno(), ENOSPC);
  EXPECT_EQ(save.error().path(), root_ + "/step-2/node-0.0.1.safetensors");
  EXPECT_EQ(entries(), std::set<std::string>{"step-1"});
  EXPECT_EQ(*checkpointer->latest(), 1U);
  const auto third = checkpointer->save(3, model(3).state(), {.wait = Wait::until_durable});
  EXPECT_TRUE(third.ok()) << third.error().to_string();  // other steps have room
}

TEST_P(Faults, AFailedSyncIsNeverTriedAgainOnTheSameFile) {
  FaultFiles faulty([](std::uint64_t, std::string_view call, const std::string& path) {
    return call == "sync" && path.ends_with(".safetensors") ? FileFault{.error = EIO} : FileFault{};
  });
  auto checkpointer = open(faulty);
  EXPECT_FALSE(checkpointer->save(1, model(1).state(), {.wait = Wait::until_durable}).ok());
  int syncs = 0;
  for (const std::string& call : faulty.calls()) syncs += call.find("sync ") == 0 && call.ends_with(".safetensors");
  EXPECT_EQ(syncs, 1);
}

TEST_P(Faults, ALinkWhoseAnswerIsLostIsSettledByWhatIsThere) {
  for (const int error : {EEXIST, EIO, ESTALE}) {
    const testing::TempDir temp;
    root_ = temp.path().string();
    FaultFiles lossy([&](std::uint64_t, std::string_view call, const std::string&) {
      return call == "link" ? FileFault{.error = error, .done_anyway = true} : FileFault{};
    });
    auto checkpointer = open(lossy);
    const auto save = checkpointer->save(1, model(1).state(), {.wait = Wait::until_durable});
    EXPECT_TRUE(save.ok()) << error;
    EXPECT_EQ(problem(root_, 1, 1), "") << error;
  }
}

TEST_P(Faults, AFileSystemWithoutLinksIsRefusedWithAWordOnWhatToDo) {
  FaultFiles unlinked([](std::uint64_t, std::string_view call, const std::string&) {
    return call == "link" ? FileFault{.error = EPERM} : FileFault{};
  });
  auto checkpointer = open(unlinked);
  const auto save = checkpointer->save(1, model(1).state(), {.wait = Wait::until_durable});
  ASSERT_FALSE(save.ok());
  EXPECT_NE(save.error().hint().find("hard links"), std::string::npos) << save.error().to_string();
  EXPECT_TRUE(checkpointer->steps()->empty());
}

TEST_P(Faults, ShortWritesAndRefusedDirectWritesLoseNothing) {
  FaultFiles odd([](std::uint64_t number, std::string_view call, const std::string& path) {
    if (call != "write" || !path.ends_with(".safetensors")) return FileFault{};
    if (number % 2 == 0) return FileFault{.write_most = 4096};
    return FileFault{.write_most = 1000};
  });
  auto first = open(odd);
  ASSERT_TRUE(first->save(1, model(1).state(), {.wait = Wait::until_durable}).ok());
  EXPECT_EQ(problem(root_, 1, 1), "");
  bool refused = false;
  FaultFiles at_write([&](std::uint64_t, std::string_view call, const std::string& path) {
    if (call != "write" || !path.ends_with(".safetensors") || std::exchange(refused, true)) return FileFault{};
    return FileFault{.error = EINVAL};
  });
  auto second = open(at_write);
  ASSERT_TRUE(second->save(2, model(2).state(), {.wait = Wait::until_durable}).ok());
  EXPECT_TRUE(refused);
  EXPECT_EQ(problem(root_, 2, 2), "");
  FaultFiles at_open([](std::uint64_t, std::string_view call, const std::string&) {
    return call == "set_direct" ? FileFault{.error = EINVAL} : FileFault{};
  });
  auto third = open(at_open);
  const auto save = third->save(3, model(3).state(), {.wait = Wait::until_durable});
  ASSERT_TRUE(save.ok()) << save.error().to_string();
  EXPECT_FALSE((*save)->report().direct);
  EXPECT_EQ(problem(root_, 3, 3), "");
}

// Case P09 and T01: the error of a save that nobody waited for comes at wait() and at the next save, once.
TEST_P(Faults, AnErrorInTheBackgroundIsToldAtWaitAndAtTheNextSave) {
  FaultFiles faulty([](std::uint64_t, std::string_view call, const std::string& path) {
    return call == "sync" && path.find("step-1/node") != std::string::npos ? FileFault{.error = EIO} : FileFault{};
  });
  auto checkpointer = open(faulty);
  const auto first = checkpointer->save(1, model(1).state(), {});
  ASSERT_TRUE(first.ok());
  EXPECT_EQ((*first)->wait().error().system_errno(), EIO);
  EXPECT_EQ((*first)->status(), SaveStatus::failed);
  const auto second = checkpointer->save(2, model(2).state(), {.wait = Wait::until_durable});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().system_errno(), EIO);
  EXPECT_NE(second.error().path().find("step-1/"), std::string::npos);
  EXPECT_EQ(entries(), std::set<std::string>{});
  const auto third = checkpointer->save(3, model(3).state(), {.wait = Wait::until_durable});
  ASSERT_TRUE(third.ok()) << third.error().to_string();
  EXPECT_EQ(*checkpointer->steps(), std::vector<std::uint64_t>{3});
}

// Case P01: a checkpoint that was damaged after it was saved does not count, and retention keeps the good ones.
TEST_P(Faults, ADamagedCheckpointIsPassedOverAndCostsNoGoodOne) {
  auto checkpointer = open(io::system_files(), 1);
  ASSERT_TRUE(checkpointer->save(1, model(1).state(), {.wait = Wait::until_durable}).ok());
  auto keeper = open(io::system_files(), 0);
  ASSERT_TRUE(keeper->save(2, model(2).state(), {.wait = Wait::until_durable}).ok());
  const std::string segment = root_ + "/step-2/node-0.0.1.safetensors";
  std::filesystem::resize_file(segment, std::filesystem::file_size(segment) - 1);
  EXPECT_EQ(*checkpointer->latest(), 1U);
  auto two = open(io::system_files(), 2);
  ASSERT_TRUE(two->save(3, model(3).state(), {.wait = Wait::until_durable}).ok());
  two->wait_idle();
  EXPECT_EQ(problem(root_, 1, 1), "");  // one of the two that are whole
  EXPECT_EQ(problem(root_, 3, 3), "");
}

TEST_P(Faults, WhatIsNotOursIsNeverRemoved) {
  std::filesystem::create_directories(root_ + "/step-01");
  std::filesystem::create_directories(root_ + "/step-7");
  std::filesystem::create_directories(root_ + "/.trash-mine");
  temp_.write("step-7/notes.txt", "mine");
  temp_.write("model.safetensors", "mine");
  auto checkpointer = open(io::system_files(), 1);
  ASSERT_TRUE(checkpointer->save(8, model(1).state(), {.wait = Wait::until_durable}).ok());
  checkpointer->wait_idle();
  EXPECT_TRUE(entries().contains("step-01"));
  EXPECT_TRUE(entries().contains(".trash-mine"));
  EXPECT_TRUE(entries().contains("model.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(root_ + "/step-7/notes.txt"));
  const auto refused = checkpointer->save(7, model(1).state(), {.wait = Wait::until_durable});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message().find("not ours"), std::string::npos) << refused.error().to_string();
}

INSTANTIATE_TEST_SUITE_P(State, Faults, test::every_device(), test::device_name);

}  // namespace
}  // namespace infercluster::checkpoint
