// SPDX-License-Identifier: Apache-2.0
#include "io/backend.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/thread.h"
#include "base/units.h"
#include "io/uring_refusal.h"
#include "os/file.h"
#include "testing/pattern.h"
#include "testing/refuse_syscalls.h"
#include "testing/temp_dir.h"

namespace infercluster::io {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AlignedMemory;
using testing::first_difference;
using testing::pattern_text;

constexpr std::uint64_t kFileBytes = 1 * kMiB + 77;

// Both backends keep the same promises.
class BackendTest : public ::testing::TestWithParam<BackendChoice> {
 protected:
  void SetUp() override {
    if (GetParam() == BackendChoice::uring && !probe_uring().ok()) GTEST_SKIP() << probe_uring().error().to_string();
    path_ = directory_.write("data", pattern_text(kFileBytes));
    file_ = os::open_for_reading(path_).value();
  }

  std::unique_ptr<Backend> open(unsigned depth, unsigned threads = 0) {
    return std::move(open_backend({.choice = GetParam(), .depth = depth, .threads = threads})).value().backend;
  }
  ReadOperation read(std::uint64_t offset, std::uint32_t length, std::byte* memory, std::uint64_t token) {
    return {.fd = file_.get(), .offset = offset, .memory = memory, .length = length, .token = token};
  }
  // The next result; fails the test when none comes.
  static OperationResult next(Backend& backend) {
    std::array<OperationResult, 1> results;
    for (int i = 0; i < 100; ++i) {
      if (backend.wait(results, seconds(1)) == 1) return results[0];
    }
    ADD_FAILURE() << "no result";
    return {};
  }

  testing::TempDir directory_;
  std::string path_;
  Fd file_;
};

TEST_P(BackendTest, ReadsWhatTheFileHolds) {
  const auto backend = open(4);
  AlignedMemory memory(64 * kKiB);
  ASSERT_TRUE(backend->submit(read(4097, 64 * kKiB, memory.data(), 7)));
  EXPECT_EQ(backend->in_flight(), 1u);
  const OperationResult result = next(*backend);
  EXPECT_EQ(result.token, 7u);
  EXPECT_EQ(result.result, 64 * kKiB);
  EXPECT_EQ(first_difference(memory.span(0, 64 * kKiB), 4097), 64 * kKiB);
  EXPECT_EQ(backend->in_flight(), 0u);
}

TEST_P(BackendTest, ReportsTheEndOfTheFile) {
  const auto backend = open(4);
  AlignedMemory memory(4096);
  ASSERT_TRUE(backend->submit(read(kFileBytes - 10, 4096, memory.data(), 1)));
  EXPECT_EQ(next(*backend).result, 10);
  ASSERT_TRUE(backend->submit(read(kFileBytes, 4096, memory.data(), 2)));
  EXPECT_EQ(next(*backend).result, 0);
}

TEST_P(BackendTest, ReportsErrnoAsAResult) {
  const auto backend = open(4);
  AlignedMemory memory(4096);
  ReadOperation operation = read(0, 4096, memory.data(), 1);
  operation.fd = -1;
  ASSERT_TRUE(backend->submit(operation));
  EXPECT_EQ(next(*backend).result, -EBADF);
  operation = read(0, 4096, nullptr, 2);
  ASSERT_TRUE(backend->submit(operation));
  EXPECT_EQ(next(*backend).result, -EFAULT);
}

TEST_P(BackendTest, TakesNoMoreThanItsCapacityAndThenGoesOn) {
  const auto backend = open(5);
  EXPECT_EQ(backend->capacity(), 5u);
  AlignedMemory memory(24 * kKiB);
  for (std::uint64_t round = 0; round < 50; ++round) {
    for (std::uint64_t i = 0; i < 5; ++i)
      ASSERT_TRUE(backend->submit(read(i * 4096, 4096, memory.data() + i * 4096, i)));
    EXPECT_FALSE(backend->submit(read(0, 4096, memory.data() + 20 * kKiB, 99)));
    unsigned seen = 0;
    for (int i = 0; i < 5; ++i) {
      const OperationResult result = next(*backend);
      EXPECT_EQ(result.result, 4096);
      seen |= 1u << result.token;
    }
    EXPECT_EQ(seen, 31u);
  }
}

TEST_P(BackendTest, ReadsWithAnyHintGiveTheSameBytes) {
  const auto backend = open(16);
  AlignedMemory memory(kMiB);
  for (std::uint64_t round = 0; round < 20; ++round) {
    memory.clear();
    for (std::uint64_t i = 0; i < 16; ++i) {
      ReadOperation operation = read(i * 64 * kKiB, 64 * kKiB, memory.data() + i * 64 * kKiB, i);
      operation.hint = std::array{ReadHint::device, ReadHint::buffered, ReadHint::resident}[i % 3];
      ASSERT_TRUE(backend->submit(operation));
    }
    EXPECT_EQ(backend->in_flight(), 16u);
    for (int i = 0; i < 16; ++i) EXPECT_EQ(next(*backend).result, 64 * kKiB);
    EXPECT_EQ(first_difference(memory.span(0, kMiB), 0), kMiB);
  }
}

TEST_P(BackendTest, ZeroTimeoutDoesNotWait) {
  const auto backend = open(2);
  std::array<OperationResult, 2> results;
  EXPECT_EQ(backend->wait(results, seconds(0)), 0u);
}

TEST_P(BackendTest, TimeoutEndsTheWait) {
  const auto backend = open(2);
  std::array<OperationResult, 2> results;
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(backend->wait(results, milliseconds(20)), 0u);
  EXPECT_GE(std::chrono::steady_clock::now() - before, milliseconds(20));
}

TEST_P(BackendTest, WakeBeforeTheWaitIsNotLost) {
  const auto backend = open(2);
  std::array<OperationResult, 2> results;
  for (int i = 0; i < 3; ++i) {
    backend->wake();
    EXPECT_EQ(backend->wait(results, std::chrono::hours(1)), 0u);
  }
}

TEST_P(BackendTest, AWakeEndsOneWaitOnly) {
  const auto backend = open(2);
  std::array<OperationResult, 2> results;
  backend->wake();
  backend->wake();  // two before one wait are one
  EXPECT_EQ(backend->wait(results, std::chrono::hours(1)), 0u);
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(backend->wait(results, milliseconds(20)), 0u);
  EXPECT_GE(std::chrono::steady_clock::now() - before, milliseconds(20));
}

TEST_P(BackendTest, WakeFromAnotherThreadEndsTheWait) {
  const auto backend = open(2);
  std::array<OperationResult, 2> results;
  for (int i = 0; i < 100; ++i) {
    std::thread other([&] { backend->wake(); });
    EXPECT_EQ(backend->wait(results, std::chrono::hours(1)), 0u);
    other.join();
  }
}

TEST_P(BackendTest, WakesDoNotCountAsOperations) {
  const auto backend = open(1);
  AlignedMemory memory(4096);
  std::array<OperationResult, 1> results;
  backend->wake();
  EXPECT_EQ(backend->wait(results, seconds(0)), 0u);
  EXPECT_EQ(backend->in_flight(), 0u);
  ASSERT_TRUE(backend->submit(read(0, 4096, memory.data(), 3)));
  backend->wake();
  EXPECT_EQ(next(*backend).token, 3u);
}

void ignore_signal(int) {}

TEST_P(BackendTest, SignalsDoNotEndTheWait) {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = ignore_signal;  // without SA_RESTART: system calls give EINTR
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  const auto backend = open(2);
  const pthread_t waiting = ::pthread_self();
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) {
      ::pthread_kill(waiting, SIGUSR1);
      std::this_thread::yield();
    }
  });
  std::array<OperationResult, 2> results;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(backend->wait(results, milliseconds(50)), 0u);
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(50));
  AlignedMemory memory(4096);
  ASSERT_TRUE(backend->submit(read(0, 4096, memory.data(), 3)));
  EXPECT_EQ(next(*backend).result, 4096);
  stop = true;
  other.join();
  ASSERT_EQ(::sigaction(SIGUSR1, &before, nullptr), 0);
}

TEST_P(BackendTest, AForkedChildMayDestroyItWithReadsInFlight) {
  remember_process();
  auto backend = open(4);
  AlignedMemory memory(kMiB);
  ASSERT_TRUE(backend->submit(read(0, kMiB, memory.data(), 1)));
  const pid_t child = ::fork();
  if (child == 0) {
    backend.reset();
    ::_exit(7);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
  EXPECT_EQ(next(*backend).result, kMiB);
}

TEST_P(BackendTest, DestructionWaitsForOperations) {
  AlignedMemory memory(kMiB);
  for (int round = 0; round < 20; ++round) {
    memory.clear();
    {
      const auto backend = open(16);
      for (std::uint64_t i = 0; i < 16; ++i) {
        ReadOperation operation = read(i * 64 * kKiB, 64 * kKiB, memory.data() + i * 64 * kKiB, i);
        operation.hint = i % 2 == 0 ? ReadHint::device : ReadHint::resident;
        ASSERT_TRUE(backend->submit(operation));
      }
    }
    EXPECT_EQ(first_difference(memory.span(0, kMiB), 0), kMiB);
  }
}

TEST_P(BackendTest, MayBeOpenedInOneThreadAndDrivenInAnother) {
  auto backend = open(4);
  std::thread driver([&] {
    AlignedMemory memory(4096);
    EXPECT_TRUE(backend->submit(read(0, 4096, memory.data(), 1)));
    EXPECT_EQ(next(*backend).result, 4096);
    backend.reset();
  });
  driver.join();
}

TEST_P(BackendTest, IsDestroyedInAnyThreadWhenNothingIsInFlight) {
  auto backend = open(4);
  std::thread driver([&] {
    std::array<OperationResult, 1> results;
    EXPECT_EQ(backend->wait(results, seconds(0)), 0u);
  });
  driver.join();
  backend.reset();
}

TEST_P(BackendTest, NamesItself) {
  EXPECT_EQ(open(1)->name(), GetParam() == BackendChoice::uring ? "io_uring" : "threads");
}

TEST(ThreadBackend, WorksWithOneThread) {
  testing::TempDir directory;
  const Fd file = os::open_for_reading(directory.write("data", pattern_text(64 * kKiB))).value();
  const auto backend =
      std::move(open_backend({.choice = BackendChoice::threads, .depth = 16, .threads = 1})).value().backend;
  AlignedMemory memory(64 * kKiB);
  for (std::uint64_t i = 0; i < 16; ++i) {
    ASSERT_TRUE(backend->submit({.fd = file.get(),
                                 .offset = i * 4096,
                                 .memory = memory.data() + i * 4096,
                                 .length = 4096,
                                 .hint = i % 2 == 0 ? ReadHint::device : ReadHint::resident,
                                 .token = i}));
  }
  std::array<OperationResult, 16> results;
  std::size_t count = 0;
  while (count < 16) count += backend->wait(std::span(results).subspan(count), seconds(10));
  EXPECT_EQ(first_difference(memory.span(0, 64 * kKiB), 0), 64 * kKiB);
}

INSTANTIATE_TEST_SUITE_P(Both, BackendTest, ::testing::Values(BackendChoice::uring, BackendChoice::threads),
                         [](const auto& tested) { return tested.param == BackendChoice::uring ? "Uring" : "Threads"; });

TEST(UringRefusal, NamesCauseAndRemedy) {
  EXPECT_NE(uring_refusal(EPERM, 2).message().find("kernel.io_uring_disabled = 2"), std::string::npos);
  EXPECT_NE(uring_refusal(EPERM, 2).hint().find("sysctl kernel.io_uring_disabled=0"), std::string::npos);
  EXPECT_NE(uring_refusal(EPERM, 1).hint().find("io_uring_group"), std::string::npos);
  EXPECT_NE(uring_refusal(EPERM, 0).message().find("seccomp"), std::string::npos);
  EXPECT_NE(uring_refusal(EPERM, std::nullopt).hint().find("io_uring_setup"), std::string::npos);
  EXPECT_NE(uring_refusal(ENOSYS, std::nullopt).message().find("5.11"), std::string::npos);
  EXPECT_EQ(uring_refusal(ENOSYS, std::nullopt).code(), ErrorCode::unsupported);
  EXPECT_NE(uring_refusal(ENOMEM, std::nullopt).hint().find("ulimit -l"), std::string::npos);
  EXPECT_EQ(uring_refusal(EMFILE, std::nullopt).system_errno(), EMFILE);
}

TEST(OpenBackend, FallsBackToThreadsWithOneWarningWhereUringIsRefused) {
  const std::array<std::pair<long, int>, 6> refusals{{{SYS_io_uring_setup, EPERM},
                                                      {SYS_io_uring_setup, ENOSYS},
                                                      {SYS_io_uring_setup, ENOMEM},
                                                      {SYS_io_uring_enter, EPERM},
                                                      {SYS_io_uring_register, EPERM},
                                                      {SYS_io_uring_register, ENOSYS}}};
  int round = 0;
  for (const auto& [call, system_errno] : refusals) {
    const int refused_with = system_errno;
    std::atomic<int> warnings{0};
    set_log_sink([&](LogLevel level, std::string_view) { warnings += level == LogLevel::warning ? 1 : 0; });
    testing::Refusals::without(call, static_cast<std::uint32_t>(system_errno), [&] {
      for (int i = 0; i < 3; ++i) {
        const auto chosen = open_backend({.depth = 2});
        ASSERT_TRUE(chosen.ok());
        EXPECT_EQ(chosen->backend->name(), "threads");
        EXPECT_NE(chosen->reason.find("io_uring"), std::string::npos) << chosen->reason;
      }
      const auto strict = open_backend({.choice = BackendChoice::uring, .depth = 2});
      ASSERT_FALSE(strict.ok());
      EXPECT_EQ(strict.error().system_errno(), refused_with);
      EXPECT_FALSE(strict.error().hint().empty());
      EXPECT_EQ(probe_uring().error().system_errno(), refused_with);
    });
    set_log_sink({});
    EXPECT_EQ(warnings, round++ == 0 ? 1 : 0);  // once per process
  }
}

TEST(OpenBackend, AutomaticGivesAReasonExactlyWhenItFellBack) {
  const auto chosen = open_backend({.depth = 2});
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(chosen->reason.empty(), chosen->backend->name() == "io_uring");
}

}  // namespace
}  // namespace infercluster::io
