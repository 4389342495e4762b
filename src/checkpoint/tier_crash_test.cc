// SPDX-License-Identifier: Apache-2.0
// Drains that are killed, or stopped, at any call.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "base/log.h"
#include "checkpoint/saved_test_helpers.h"
#include "checkpoint/tier_drain.h"
#include "testing/fault_files.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::FaultFiles;
using testing::FileFault;

constexpr std::uint64_t kStep = 5;
constexpr std::uint64_t kExtent = manifest::kBlockBytes;

Pieces pieces_of(std::uint64_t, std::uint64_t) {
  return {test::whole("large", test::Dtype::u8, {6 * kExtent + 777})};
}

class TierCrash : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::off);
    fs::create_directory(fast());
    test::save(fast(), pieces_of, {.step = kStep});
    make_root();
    FaultFiles counting(nullptr);
    ASSERT_TRUE(drain(counting).ok());
    calls_ = counting.calls().size();
    ASSERT_GT(calls_, 50U);
  }
  void TearDown() override { set_log_level(LogLevel::warning); }

  std::string fast() const { return temp_.file("fast"); }
  std::string root() const { return temp_.file("root"); }
  void make_root() const {
    fs::remove_all(root());
    fs::create_directory(root());
  }
  Result<DrainReport> drain(io::FileCalls& calls) const {
    DrainOptions options;
    options.copy.extent_bytes = kExtent;
    options.copy.write.request_bytes = kExtent;
    options.copy.write.threads = 1;
    IC_TRY(const io::Directory from, calls.open_directory(fast()));
    IC_TRY(const io::Directory to, calls.open_directory(root()));
    return drain_step(calls, from, kStep, to, options);
  }
  // A process that drains and signals itself at that call.
  pid_t start(std::uint64_t at, int signal) const {
    const pid_t child = ::fork();
    if (child != 0) return child;
    FaultFiles files([=](std::uint64_t number, std::string_view, const std::string&) {
      if (number == at) ::raise(signal);
      return FileFault{};
    });
    ::_exit(drain(files).ok() ? 0 : 1);
  }
  bool is_there() const { return is_whole(io::system_files(), *io::system_files().open_directory(root()), kStep); }
  bool holds() const {
    test::Memory memory = test::memory_of(pieces_of(0, 1), 0);
    memory.overwrite();
    return test::open_saved(root(), kStep)->restore(memory.targets(), {}).ok() && memory.difference(7).empty();
  }

  testing::TempDir temp_;
  std::uint64_t calls_ = 0;
};

TEST_F(TierCrash, KillNineAtAnyCallLeavesWhatTheNextDrainEnds) {
  std::uint64_t resumed_most = 0;
  for (std::uint64_t call = 0; call < calls_; ++call) {
    SCOPED_TRACE("killed at call " + std::to_string(call) + " of " + std::to_string(calls_));
    make_root();
    int status = 0;
    const pid_t child = start(call, SIGKILL);
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    if (is_there()) {
      ASSERT_TRUE(holds());
    }
    const auto report = drain(io::system_files());
    ASSERT_TRUE(report.ok()) << report.error().to_string();
    ASSERT_TRUE(holds());
    resumed_most = std::max(resumed_most, report->copied.bytes_resumed);
  }
  EXPECT_GT(resumed_most, 6 * kExtent);  // killed before the commit, all was there
}

// It is stopped at any call, another drains the same step to its end, and then it goes on.
TEST_F(TierCrash, AStoppedDrainHarmsNothingWhenItGoesOn) {
  for (std::uint64_t call = 0; call < calls_; ++call) {
    SCOPED_TRACE("stopped at call " + std::to_string(call) + " of " + std::to_string(calls_));
    make_root();
    int status = 0;
    const pid_t child = start(call, SIGSTOP);
    ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
    ASSERT_TRUE(WIFSTOPPED(status));
    const auto report = drain(io::system_files());
    EXPECT_TRUE(report.ok()) << report.error().to_string();
    EXPECT_TRUE(holds());
    ::kill(child, SIGCONT);
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    ASSERT_TRUE(is_there());
    ASSERT_TRUE(holds());
  }
}

}  // namespace
}  // namespace infercluster::checkpoint
