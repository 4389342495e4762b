// SPDX-License-Identifier: Apache-2.0
// Ranks that save, as processes.
#pragma once

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/log.h"
#include "checkpoint/checkpoint_test_helpers.h"
#include "checkpoint/checkpointer.h"
#include "exchange/directory_store.h"
#include "exchange/exchange_test_helpers.h"
#include "testing/fault_files.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint::test {

using exchange::RankProcess;
using testing::FaultFiles;
using testing::FileFault;

// `rank` of `world`: a tensor in rows, one that all hold.
inline Memory process_model(std::uint64_t seed, int rank, int world) {
  Memory memory;
  memory.add(
      shard("rows", Dtype::f32, {103, 130}, 0, static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(world)),
      seed);
  memory.add(whole("alike", Dtype::u8, {30'001}), seed);
  return memory;
}

struct OneSave {
  std::uint64_t step = 0;
  std::uint64_t seed = 0;
  Exists exists = Exists::error;
};

struct Job {
  std::string root;
  std::string meeting;  // the directory of the exchange
  int world = 4;
  std::uint64_t keep = 2;
  std::chrono::milliseconds deadline{20'000};
  std::vector<OneSave> saves{};
  int device = -1;  // where the ranks have their state. This process keeps off the driver: forks of it use it
};

// A rank that saves them all without waiting, then waits. It says one line for each: "STEP durable", or "STEP " and the
// error; then how many file-system calls it made.
inline RankProcess start_rank(const Job& job, int rank, const FaultFiles::Plan& plan = {},
                              const std::function<void()>& prepare = {}) {
  return RankProcess([=](const RankProcess::Say& say) {
    set_log_level(LogLevel::off);
    if (prepare) prepare();
    device_of_state() = job.device;
    ::setenv("INFERCLUSTER_GPU_DOUBLE", "delay_us=0..300", 1);
    FaultFiles calls(plan);
    auto ranks = exchange::open_in_directory(job.meeting, "job", {rank, job.world},
                                             exchange::deadline_in(std::chrono::seconds(30)));
    if (!ranks.ok()) return say("exchange: " + ranks.error().to_string());
    Options options;
    options.exchange = ranks->get();
    options.calls = &calls;
    options.retention.keep = job.keep;
    options.call_deadline = options.write_deadline = job.deadline;
    auto checkpointer = Checkpointer::open(job.root, options);
    if (!checkpointer.ok()) return say("open: " + checkpointer.error().to_string());
    std::vector<std::pair<std::uint64_t, std::shared_ptr<const Save>>> started;
    for (const OneSave& one : job.saves) {
      Memory memory = process_model(one.seed, rank, job.world);
      const auto save = (*checkpointer)->save(one.step, memory.state(), {Wait::until_staged, one.exists});
      memory.overwrite();
      if (!save.ok())
        say(std::to_string(one.step) + " " + save.error().to_string());
      else
        started.emplace_back(one.step, *save);
    }
    for (const auto& [step, save] : started) {
      const Status done = save->wait();
      say(std::to_string(step) + " " + (done.ok() ? "durable" : done.error().to_string()));
    }
    (*checkpointer)->wait_idle();
    say(std::to_string(calls.calls().size()));
  });
}

// What is wrong with the root; empty: every step that is committed loads with every checksum right, with the bytes of
// one save of that step, and there is one at least.
inline std::string examine(const std::string& root, const std::vector<OneSave>& saves) {
  auto checkpointer = Checkpointer::open(root, {});
  if (!checkpointer.ok()) return checkpointer.error().to_string();
  const auto newest = (*checkpointer)->latest();
  if (!newest.ok() || !*newest) return "there is no whole checkpoint";
  const auto steps = (*checkpointer)->steps();
  if (!steps.ok()) return steps.error().to_string();
  for (const std::uint64_t step : *steps) {
    auto checkpoint = Checkpoint::open(io::system_files(), root, step);
    if (!checkpoint.ok()) return checkpoint.error().to_string();
    Memory memory = process_model(0, 0, 1);
    memory.overwrite();
    const auto report = (*checkpoint)->restore(memory.targets(), {});
    if (!report.ok()) return report.error().to_string();
    bool known = false;
    for (const OneSave& one : saves) known |= one.step == step && memory.difference(one.seed).empty();
    if (!known) return "step " + std::to_string(step) + " has bytes that nobody saved under it";
  }
  return {};
}

// Whether the step loads with this seed's bytes.
inline bool holds(const std::string& root, std::uint64_t step, std::uint64_t seed) {
  auto checkpoint = Checkpoint::open(io::system_files(), root, step);
  if (!checkpoint.ok()) return false;
  Memory memory = process_model(0, 0, 1);
  memory.overwrite();
  return (*checkpoint)->restore(memory.targets(), {}).ok() && memory.difference(seed).empty();
}

inline std::set<std::string> entries_of(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

}  // namespace infercluster::checkpoint::test
