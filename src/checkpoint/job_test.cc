// SPDX-License-Identifier: Apache-2.0
// Jobs of four processes in which one rank meets trouble: all end within the deadline, with the same first cause.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "checkpoint/process_test_helpers.h"
#include "io/latency_signal.h"

namespace infercluster::checkpoint {
namespace {

using test::entries_of;
using test::examine;
using test::FaultFiles;
using test::FileFault;
using test::holds;
using test::Job;
using test::Memory;
using test::RankProcess;
using test::start_rank;
using test::whole;

class JobTest : public ::testing::TestWithParam<int> {
 protected:
  JobTest() {
    job_.root = temp_.path().string();
    job_.meeting = meeting_.path().string();
    job_.device = GetParam();
  }
  void SetUp() override { set_log_level(LogLevel::off); }
  void TearDown() override { set_log_level(LogLevel::warning); }

  // What each rank said of its first save, when `victim` has this plan.
  std::vector<std::string> run(int victim = -1, const FaultFiles::Plan& plan = {},
                               const std::function<void()>& prepare = {}) {
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < job_.world; ++rank) {
      ranks.push_back(rank == victim ? start_rank(job_, rank, plan, prepare) : start_rank(job_, rank));
    }
    std::vector<std::string> lines;
    for (RankProcess& rank : ranks) {
      lines.push_back(rank.line());
      while (!rank.line().empty()) continue;
    }
    return lines;
  }
  void save_first() {
    job_.saves = {{1, 1}};
    ASSERT_EQ(run(), std::vector<std::string>(4, "1 durable"));
  }
  // Save 2 fails on all ranks with one text, which has all of `parts`; nothing of it is left; the next one works.
  void expect_same_failure(const std::vector<std::string>& lines, const std::vector<std::string>& parts) {
    for (const std::string& line : lines) EXPECT_EQ(line, lines[0]);
    for (const std::string& part : parts) EXPECT_NE(lines[0].find(part), std::string::npos) << lines[0];
    EXPECT_EQ(entries_of(job_.root), std::set<std::string>{"step-1"});
    EXPECT_EQ(examine(job_.root, {{1, 1}}), "");
    EXPECT_EQ(run(), std::vector<std::string>(4, "2 durable"));
    EXPECT_TRUE(holds(job_.root, 2, 2));
  }

  testing::TempDir temp_;
  testing::TempDir meeting_;
  Job job_;
};

// Case P02: a refusal by one rank reaches all.
TEST_P(JobTest, OneRankThatCannotWriteIsNamedOnAll) {
  save_first();
  job_.saves = {{2, 2}};
  const auto lines = run(2, [](std::uint64_t, std::string_view call, const std::string&) {
    return call == "create" ? FileFault{.error = EACCES} : FileFault{};
  });
  expect_same_failure(lines, {"rank 2: ", "Permission denied", "step-2/node-2.0.1.safetensors"});
}

// Case P02: an attribute cache says for a while that the directory is not there.
TEST_P(JobTest, ADirectoryThatOneRankSeesLateIsWaitedFor) {
  job_.saves = {{2, 2}};
  int left = 25;
  const auto lines = run(3, [&left](std::uint64_t, std::string_view call, const std::string&) {
    return call == "open_directory_in" && left-- > 0 ? FileFault{.error = ENOENT} : FileFault{};
  });
  EXPECT_EQ(lines, std::vector<std::string>(4, "2 durable"));
}

TEST_P(JobTest, ADirectoryThatOneRankNeverSeesEndsAllByTheDeadline) {
  save_first();
  job_.saves = {{2, 2}};
  job_.deadline = std::chrono::milliseconds(1500);
  const auto begin = std::chrono::steady_clock::now();
  const auto lines = run(3, [](std::uint64_t, std::string_view call, const std::string&) {
    return call == "open_directory_in" ? FileFault{.error = ENOENT} : FileFault{};
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  for (const std::string& line : lines) EXPECT_EQ(line.find("2 durable"), std::string::npos) << line;
  EXPECT_EQ(std::set<std::string>(lines.begin(), lines.end()).size(), 1U) << lines[0] << "\n" << lines[3];
  EXPECT_EQ(examine(job_.root, {{1, 1}}), "");
}

// Case P02: what an interrupted save left is no obstacle for the next.
TEST_P(JobTest, AStepThatIsSavedAlreadyIsRefusedOnAll) {
  save_first();
  const auto lines = run();
  for (const std::string& line : lines) EXPECT_EQ(line, lines[0]);
  EXPECT_NE(lines[0].find("step 1 is saved already"), std::string::npos) << lines[0];
  EXPECT_TRUE(holds(job_.root, 1, 1));
}

// Case P03: no space, quota, a failing flush or close on one rank.
TEST_P(JobTest, AFullOrFailingStorageTargetIsNamedOnAll) {
  const std::vector<std::pair<std::string, int>> troubles{
      {"reserve", ENOSPC}, {"write", EDQUOT}, {"sync", EIO}, {"close", EIO}, {"sync_directory", EIO}};
  for (const auto& [call, error] : troubles) {
    const testing::TempDir fresh;
    job_.root = fresh.path().string();
    SCOPED_TRACE(call);
    save_first();
    job_.saves = {{2, 2}};
    const auto lines = run(1, [&, at = call, number = error](std::uint64_t, std::string_view name, const std::string&) {
      return name == at ? FileFault{.error = number} : FileFault{};
    });
    expect_same_failure(lines, {"rank 1: ", "step-2"});
  }
}

// Case P03: the payload fits, the commit record does not.
TEST_P(JobTest, ACommitRecordThatDoesNotFitIsNamedOnAll) {
  save_first();
  job_.saves = {{2, 2}};
  const auto lines = run(0, [](std::uint64_t, std::string_view call, const std::string& path) {
    return call == "write" && path.ends_with("COMMIT.1.tmp") ? FileFault{.error = EDQUOT} : FileFault{};
  });
  expect_same_failure(lines, {"rank 0: ", "COMMIT.1.tmp"});
}

// Case P03, by the kernel: the file may not grow so large.
TEST_P(JobTest, AFileSizeLimitOfTheSystemIsNamedOnAll) {
  save_first();
  job_.saves = {{2, 2}};
  const auto lines = run(2, {}, [] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{8192, 8192};
    IC_ASSERT(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  });
  expect_same_failure(lines, {"rank 2: ", "File too large", "step-2/node-2.0.1.safetensors"});
}

TEST_P(JobTest, RanksThatSaveDifferentStepsAreToldSo) {
  save_first();
  Job other = job_;
  job_.saves = {{2, 2}};
  other.saves = {{3, 2}};
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 4; ++rank) ranks.push_back(start_rank(rank == 3 ? other : job_, rank));
  for (RankProcess& rank : ranks) {
    const std::string line = rank.line();
    EXPECT_NE(line.find("rank 3 saves step 3, and rank 0 step 2"), std::string::npos) << line;
  }
  while (!ranks[0].line().empty()) continue;
  EXPECT_EQ(entries_of(job_.root), std::set<std::string>{"step-1"});
}

// An unchanged plan is reused; a failed save in the background is told to all at the next.
TEST_P(JobTest, AFailureThatOneRankSawFirstIsToldToAllAtTheNextSave) {
  job_.saves = {{1, 1}, {2, 2}, {3, 3}};
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back(start_rank(job_, rank, [rank](std::uint64_t, std::string_view call, const std::string& path) {
      const bool hit = rank == 1 && call == "sync" && path.find("step-1/") != std::string::npos;
      return hit ? FileFault{.error = EIO} : FileFault{};
    }));
  }
  std::set<std::string> told;
  for (RankProcess& rank : ranks) {
    std::string all;
    for (std::string line = rank.line(); line.find(' ') != std::string::npos; line = rank.line()) all += line + "\n";
    told.insert(all);
  }
  ASSERT_EQ(told.size(), 1U) << *told.begin() << "---\n" << *told.rbegin();
  EXPECT_NE(told.begin()->find("1 " + job_.root + "/step-1/node-1.0.1.safetensors: rank 1: "), std::string::npos)
      << *told.begin();
}

// Another process of the node says that its reads are late; then it is gone.
TEST(Drain, GivesWayToAnotherProcessThatIsLateAndToNobodyElse) {
  const testing::TempDir temp;
  const testing::TempDir latency;
  Options options;
  options.foreground.rate_least = 300.0 * 1024 * 1024;
  const std::string folder = latency.file("latency");
  ASSERT_EQ(::setenv("INFERCLUSTER_LATENCY_DIR", folder.c_str(), 1), 0);
  Memory memory;
  memory.add(whole("w", test::Dtype::f32, {3, 1024, 1024}), 1);
  std::vector<SaveReport> reports;
  const auto save = [&](std::uint64_t step) {
    auto checkpointer = Checkpointer::open(temp.path().string(), options);
    const auto saved = (*checkpointer)->save(step, memory.state(), {.wait = Wait::until_durable});
    ASSERT_TRUE(saved.ok()) << saved.error().to_string();
    reports.push_back((*saved)->report());
    auto checkpoint = Checkpoint::open(io::system_files(), temp.path().string(), step);
    Memory loaded;
    loaded.add(whole("w", test::Dtype::f32, {3, 1024, 1024}), 0);
    ASSERT_TRUE((*checkpoint)->restore(loaded.targets(), {}).ok());
    EXPECT_EQ(loaded.difference(1), "");
  };
  {
    RankProcess reader([&](const RankProcess::Say& say) {
      auto publisher = io::LatencyPublisher::open(folder);
      IC_ASSERT(publisher.ok());
      say("open");
      while (true) {  // until it is killed
        const auto late = std::chrono::milliseconds(400);
        IC_ASSERT((*publisher)->publish(steady_clock().now(), {late, std::chrono::milliseconds(2)}).ok());
      }
    });
    ASSERT_EQ(reader.line(), "open");
    const auto heard = io::make_node_signal(folder);
    while (!heard->read(steady_clock().now())) continue;
    save(1);
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) std::filesystem::remove(entry.path());
  save(2);
  ::unsetenv("INFERCLUSTER_LATENCY_DIR");
  ASSERT_EQ(reports.size(), 2U);
  EXPECT_GT(reports[0].requests_cut, 0U);
  EXPECT_GT(reports[0].throttled_seconds, 0);
  EXPECT_NEAR(reports[0].lowest_rate, 300.0 * 1024 * 1024, 1);
  EXPECT_EQ(reports[1].requests_cut, 0U);
  EXPECT_EQ(reports[1].throttled_seconds, 0);
}

INSTANTIATE_TEST_SUITE_P(State, JobTest, test::every_device(), test::device_name);

}  // namespace
}  // namespace infercluster::checkpoint
