// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/log.h"
#include "base/units.h"
#include "io/engine_test_helpers.h"
#include "io/source.h"
#include "os/page_cache.h"
#include "testing/few_descriptors.h"
#include "testing/refuse_syscalls.h"

namespace infercluster::io {
namespace {

using testing::Fault;

std::unique_ptr<FileSource> open_source(const std::string& path, const FileSource::Options& options = {}) {
  Result<std::unique_ptr<FileSource>> source = FileSource::open(path, nullptr, options);
  EXPECT_TRUE(source.ok()) << source.error().to_string();
  return std::move(source).value();
}

class FileSourceTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kBytes = 4 * kMiB + 100;

  void SetUp() override { path_ = directory_.write("data", testing::pattern_text(kBytes)); }

  // True when the file is on a device and can be read directly; its pages are out of the page cache then.
  bool make_cold() {
    const Fd fd = os::open_for_reading(path_).value();
    if (os::file_system_of(fd).value().in_memory || !os::direct_limits_of(fd).supported) return false;
    EXPECT_EQ(::fsync(fd.get()), 0);
    EXPECT_TRUE(os::drop_page_cache(fd).ok());
    return os::residency_of(fd, 0, kBytes).fraction < 0.1;
  }
  void make_warm(std::uint64_t begin, std::uint64_t end) {
    const Fd fd = os::open_for_reading(path_).value();
    ASSERT_EQ(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM), 0);  // no readahead beyond what is read
    std::vector<std::byte> bytes(end - begin);
    ASSERT_TRUE(os::read_exactly(fd, bytes, begin, path_).ok());
  }
  void rewrite(std::uint64_t offset, std::string_view text) {
    const Fd fd(::open(path_.c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(::pwrite(fd.get(), text.data(), text.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(text.size()));
  }

  testing::TempDir directory_;
  std::string path_;
};

TEST_F(FileSourceTest, AColdFileIsReadDirectly) {
  if (!make_cold()) GTEST_SKIP() << "no direct I/O in " << directory_.path();
  const auto source = open_source(path_);
  EXPECT_EQ(source->mode(), FileMode::direct);
  EXPECT_EQ(source->reason().find("0 % of it is in the page cache"), 0u) << source->reason();
  EXPECT_GT(source->alignment(), 1u);
  EXPECT_EQ(source->size(), kBytes);
}

TEST_F(FileSourceTest, AWarmFileIsReadFromThePageCache) {
  make_warm(0, kBytes);
  const auto source = open_source(path_);
  EXPECT_EQ(source->mode(), FileMode::resident);
  EXPECT_EQ(source->alignment(), 1u);
  const auto operation = source->operation({.token = 3, .offset = 5, .length = 7, .memory = nullptr});
  ASSERT_TRUE(operation.has_value());
  EXPECT_EQ(operation->hint, ReadHint::resident);
  EXPECT_EQ(operation->token, 3u);
}

TEST_F(FileSourceTest, TheRangeThatIsReadDecides) {
  if (!make_cold()) GTEST_SKIP() << "no direct I/O in " << directory_.path();
  make_warm(2 * kMiB, kBytes);
  EXPECT_EQ(open_source(path_, {.begin = 2 * kMiB, .end = kBytes})->mode(), FileMode::resident);
  EXPECT_EQ(open_source(path_, {.begin = 0, .end = 2 * kMiB})->mode(), FileMode::direct);
  EXPECT_EQ(open_source(path_)->mode(), FileMode::direct);  // half of it is not enough
  EXPECT_EQ(open_source(path_, {.begin = kBytes})->mode(), FileMode::buffered);
}

TEST_F(FileSourceTest, PoliciesAreObeyed) {
  if (!make_cold()) GTEST_SKIP() << "no direct I/O in " << directory_.path();
  const auto never = open_source(path_, {.direct = DirectPolicy::never});
  EXPECT_EQ(never->mode(), FileMode::buffered);
  EXPECT_NE(never->reason().find("forbidden"), std::string::npos);
  make_warm(0, kBytes);
  EXPECT_EQ(open_source(path_, {.direct = DirectPolicy::always})->mode(), FileMode::direct);
}

TEST_F(FileSourceTest, AnAttemptThatIsNotAlignedGoesThroughThePageCache) {
  const auto source = open_source(path_, {.direct = DirectPolicy::always});
  const std::uint32_t alignment = source->alignment();
  testing::AlignedMemory memory(2 * std::size_t{alignment});
  const auto fd_of = [&](std::uint64_t offset, std::uint32_t length, std::size_t shift) {
    return source->operation({.offset = offset, .length = length, .memory = memory.data() + shift})->fd;
  };
  EXPECT_NE(fd_of(0, alignment, 0), source->buffered_fd().get());
  EXPECT_EQ(fd_of(1, alignment, 0), source->buffered_fd().get());
  EXPECT_EQ(fd_of(0, alignment - 1, 0), source->buffered_fd().get());
  EXPECT_EQ(fd_of(0, alignment, 1), source->buffered_fd().get());
}

TEST_F(FileSourceTest, AFileInMemoryIsResident) {
  if (!std::filesystem::is_directory("/dev/shm")) GTEST_SKIP() << "no /dev/shm";
  const std::string path = "/dev/shm/infercluster-test-" + std::to_string(::getpid());
  const Fd created(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_TRUE(created.valid());
  ASSERT_EQ(::ftruncate(created.get(), 1000), 0);
  const auto source = open_source(path);
  ::unlink(path.c_str());
  if (!source->file_system().in_memory) GTEST_SKIP() << "/dev/shm is " << source->file_system().name;
  EXPECT_EQ(source->mode(), FileMode::resident);
  EXPECT_NE(source->reason().find("in memory"), std::string::npos);
}

TEST_F(FileSourceTest, ARefusalAtOpenFallsBackWithOneNoticeAndItsReason) {
  if (!make_cold()) GTEST_SKIP() << "no direct I/O in " << directory_.path();
  std::atomic<int> notices{0};
  set_log_sink([&](LogLevel level, std::string_view) { notices += level == LogLevel::warning ? 1 : 0; });
  testing::Refusals::without_direct_opens(EINVAL, [&] {
    for (int i = 0; i < 3; ++i) {
      const auto source = open_source(path_);
      EXPECT_EQ(source->mode(), FileMode::buffered);
      EXPECT_NE(source->reason().find("the mount /"), std::string::npos) << source->reason();
      EXPECT_NE(source->reason().find("refuses to open it for direct I/O: Invalid argument"), std::string::npos)
          << source->reason();
      EXPECT_TRUE(source->check_unchanged().ok());
    }
    const auto strict = FileSource::open(path_, nullptr, {.direct = DirectPolicy::always});
    ASSERT_FALSE(strict.ok());
    EXPECT_NE(strict.error().message().find("the mount /"), std::string::npos) << strict.error().to_string();
    EXPECT_EQ(strict.error().system_errno(), EINVAL);
  });
  set_log_sink({});
  EXPECT_LE(notices, 1);  // one per mount and process; another test of this program may have had it
}

TEST_F(FileSourceTest, AMissingFileIsNamed) {
  const auto source = FileSource::open(directory_.file("nowhere"), nullptr, {});
  ASSERT_FALSE(source.ok());
  EXPECT_EQ(source.error().code(), ErrorCode::not_found);
  EXPECT_EQ(source.error().path(), directory_.file("nowhere"));
}

TEST_F(FileSourceTest, AGivenDescriptorIsTheFileThatIsRead) {
  Fd held = os::open_for_reading(path_).value();
  std::filesystem::remove(path_);
  directory_.write("data", "another file");
  const auto source =
      FileSource::open(path_, std::make_shared<const Fd>(std::move(held)), {.direct = DirectPolicy::always});
  ASSERT_TRUE(source.ok());
  EXPECT_EQ((*source)->size(), kBytes);
  testing::AlignedMemory memory(8192);
  const auto operation = (*source)->operation({.offset = 8192, .length = 8192, .memory = memory.data()});
  ASSERT_EQ(::pread(operation->fd, memory.data(), 8192, 8192), 8192);
  EXPECT_EQ(testing::first_difference(memory.span(0, 8192), 8192), 8192u);
}

TEST_F(FileSourceTest, ADirectDescriptorIsThereOnlyWhileItIsUsed) {
  testing::AlignedMemory memory(4096);
  const auto source = open_source(path_, {.direct = DirectPolicy::always});
  const auto read_at = [&](std::uint64_t offset) {
    const auto operation = source->operation({.offset = offset, .length = 4096, .memory = memory.data()});
    EXPECT_EQ(operation->hint, ReadHint::device);
    EXPECT_EQ(::pread(operation->fd, memory.data(), 4096, static_cast<off_t>(offset)), 4096);
    EXPECT_EQ(testing::first_difference(memory.span(0, 4096), offset), 4096U);
    return operation->fd;
  };
  const int fd = read_at(0);
  EXPECT_EQ(read_at(8192), fd);
  source->close_direct();
  EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
  read_at(4096);
}

TEST_F(FileSourceTest, WithoutADescriptorForDirectReadsTheyAreBufferedAndTheReasonNamesIt) {
  if (!make_cold()) GTEST_SKIP() << "no direct I/O in " << directory_.path();
  const auto source = open_source(path_);
  testing::AlignedMemory memory(4096);
  const testing::FewDescriptors none(0);
  const auto operation = source->operation({.offset = 0, .length = 4096, .memory = memory.data()});
  ASSERT_TRUE(operation.has_value());
  EXPECT_EQ(operation->fd, source->buffered_fd().get());
  EXPECT_EQ(source->mode(), FileMode::buffered);
  EXPECT_NE(source->reason().find("Too many open files"), std::string::npos) << source->reason();
}

TEST_F(FileSourceTest, WithoutADescriptorForDirectReadsThatWereDemandedTheyFailAndNameTheLimit) {
  const auto source = open_source(path_, {.direct = DirectPolicy::always});
  testing::AlignedMemory memory(4096);
  const testing::FewDescriptors none(0);
  const Attempt attempt{.token = 5, .offset = 0, .length = 4096, .memory = memory.data()};
  ASSERT_FALSE(source->operation(attempt).has_value());
  std::int64_t result = 0;
  source->start(attempt, [&](std::uint64_t token, std::int64_t given) {
    EXPECT_EQ(token, 5U);
    result = given;
  });
  EXPECT_EQ(result, -EMFILE);
  EXPECT_EQ(source->on_error(EMFILE), ErrorAction::fail);
  const auto refused = FileSource::open(path_, nullptr, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().to_string().find("ulimit -n"), std::string::npos) << refused.error().to_string();
}

TEST_F(FileSourceTest, AnUntouchedFileIsUnchanged) {
  const auto source = open_source(path_);
  EXPECT_TRUE(source->check_unchanged().ok());
}

TEST_F(FileSourceTest, EveryKindOfChangeIsNamed) {
  const auto expect_changed = [&](const FileSource& source, std::string_view what) {
    const Status status = source.check_unchanged();
    ASSERT_FALSE(status.ok()) << what;
    EXPECT_EQ(status.error().code(), ErrorCode::changed);
    EXPECT_EQ(status.error().path(), path_);
    EXPECT_NE(status.error().message().find(what), std::string::npos) << status.error().to_string();
  };
  {
    const auto source = open_source(path_);
    rewrite(kBytes, "more");
    expect_changed(*source, "size: expected " + std::to_string(kBytes) + " bytes, found " + std::to_string(kBytes + 4));
  }
  {
    const auto source = open_source(path_);
    rewrite(100, "other bytes");
    const timespec past[2] = {{.tv_sec = 1, .tv_nsec = 0}, {.tv_sec = 1, .tv_nsec = 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path_.c_str(), past, 0), 0);
    expect_changed(*source, "modification time: expected");
  }
  {
    const auto source = open_source(path_);
    directory_.write("new", testing::pattern_text(kBytes));
    std::filesystem::rename(directory_.file("new"), path_);
    expect_changed(*source, "another file took its place");
  }
  {
    const auto source = open_source(path_);
    std::filesystem::remove(path_);
    expect_changed(*source, "removed or renamed");
  }
}

// Through the engine, on both backends.
class FileSourceEngineTest : public EngineFixture {
 protected:
  void make_cold() {
    const Fd fd = os::open_for_reading(path_).value();
    EXPECT_EQ(::fsync(fd.get()), 0);
    EXPECT_TRUE(os::drop_page_cache(fd).ok());
  }
  std::unique_ptr<FileSource> use(DirectPolicy policy) {
    auto source = open_source(path_, {.direct = policy});
    sources_ = {source.get()};
    return source;
  }
};

TEST_P(FileSourceEngineTest, DirectAndBufferedReadsGiveTheSameBytes) {
  for (const DirectPolicy policy : {DirectPolicy::always, DirectPolicy::never, DirectPolicy::automatic}) {
    memory_.clear();
    const auto source = use(policy);
    Engine& engine = open(8);
    EXPECT_TRUE(run_all(engine, whole_file()).errors.empty());
    EXPECT_TRUE(bytes_are_right());
    if (policy != DirectPolicy::automatic) {
      EXPECT_EQ(source->mode() == FileMode::direct, policy == DirectPolicy::always);
    }
    close();
  }
}

TEST_P(FileSourceEngineTest, ARefusedDirectReadFallsBackOnceAndForAllInFlight) {
  std::atomic<int> notices{0};
  set_log_sink([&](LogLevel level, std::string_view) { notices += level == LogLevel::warning ? 1 : 0; });
  for (const int system_errno : {EINVAL, EOPNOTSUPP}) {
    memory_.clear();
    make_cold();
    const auto source = use(DirectPolicy::automatic);
    FileSource& tested = *source;
    if (tested.mode() != FileMode::direct) GTEST_SKIP() << "not read directly: " << tested.reason();
    int refused = 0;
    Engine& engine = open(8, [&](std::uint64_t, const ReadOperation& operation) {
      const bool is_direct = operation.fd != tested.buffered_fd().get();
      refused += is_direct ? 1 : 0;
      return Fault{.error = is_direct ? -system_errno : 0};
    });
    const auto outcome = run_all(engine, whole_file());
    EXPECT_TRUE(outcome.errors.empty()) << outcome.errors.begin()->second.to_string();
    EXPECT_TRUE(bytes_are_right());
    EXPECT_EQ(refused, 8);  // those that were in flight together
    EXPECT_EQ(tested.mode(), FileMode::buffered);
    EXPECT_EQ(tested.alignment(), 1u);
    EXPECT_NE(tested.reason().find("refused a direct read"), std::string::npos) << tested.reason();
    close();
  }
  set_log_sink({});
  EXPECT_LE(notices, 1);
}

TEST_P(FileSourceEngineTest, StrictDirectFailsAndNamesTheMount) {
  const auto source = use(DirectPolicy::always);
  Engine& engine = open(8, [](std::uint64_t, const ReadOperation&) { return Fault{.error = -EINVAL}; });
  const auto outcome = run_all(engine, {transfer_of(0, kBlock, 1)});
  ASSERT_EQ(outcome.errors.size(), 1u);
  EXPECT_NE(outcome.errors.at(1).hint().find("the mount /"), std::string::npos) << outcome.errors.at(1).to_string();
  EXPECT_EQ(source->mode(), FileMode::direct);
}

TEST_P(FileSourceEngineTest, AnErrorOfTheDeviceIsNoReasonToFallBack) {
  const auto source = use(DirectPolicy::always);
  Engine& engine = open(8, [](std::uint64_t, const ReadOperation&) { return Fault{.error = -EIO}; });
  EXPECT_EQ(run_all(engine, {transfer_of(0, kBlock, 1)}).errors.at(1).system_errno(), EIO);
  EXPECT_EQ(source->mode(), FileMode::direct);
}

TEST_P(FileSourceEngineTest, AFileThatIsCutUnderTheLoadIsAnErrorWithItsOffset) {
  for (const DirectPolicy policy : {DirectPolicy::always, DirectPolicy::never}) {
    directory_.write("data", testing::pattern_text(kFileBytes));
    const auto source = use(policy);
    const std::uint64_t cut = 5 * kBlock + 1000;
    bool done = false;
    Engine& engine = open(2, [&](std::uint64_t, const ReadOperation& operation) {
      if (operation.offset >= 3 * kBlock && !done) {
        EXPECT_EQ(::truncate(path_.c_str(), static_cast<off_t>(cut)), 0);
        done = true;
      }
      return Fault{};
    });
    const auto outcome = run_all(engine, whole_file());
    EXPECT_EQ(outcome.errors.size(), transfers_of_file() - 5);
    for (const auto& [token, error] : outcome.errors) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt);
      EXPECT_EQ(error.path(), path_);
      // A transfer that begins past the end only knows that nothing is there.
      EXPECT_EQ(error.offset(), std::max(cut, token * kBlock));
    }
    EXPECT_EQ(source->check_unchanged().error().code(), ErrorCode::changed);
    close();
  }
}

TEST_P(FileSourceEngineTest, OffsetsBeyondTwoAndFourGigabytesAreRight) {
  const std::uint64_t size = 5 * kGiB + 5;
  const std::uint64_t two = std::uint64_t{1} << 31;
  const std::vector<std::uint64_t> markers{two - 1, two, two + 4096, 2 * two - 1, 2 * two, size - 1};
  const std::string path = directory_.file("sparse");
  {
    const Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(size)), 0);
    for (std::size_t i = 0; i < markers.size(); ++i) {
      const char mark = static_cast<char>('A' + i);
      ASSERT_EQ(::pwrite(fd.get(), &mark, 1, static_cast<off_t>(markers[i])), 1);
    }
    ASSERT_EQ(::fsync(fd.get()), 0);
  }
  for (const DirectPolicy policy : {DirectPolicy::always, DirectPolicy::never}) {
    const auto source = open_source(path, {.direct = policy});
    sources_ = {source.get()};
    Engine& engine = open(4);
    for (std::size_t i = 0; i < markers.size(); ++i) {
      memory_.clear();
      const std::uint64_t offset = align_down(markers[i], 16 * kKiB);
      Transfer transfer = transfer_of(0, 16 * kKiB, i);
      transfer.offset = offset;
      transfer.end_of_data = std::min(size, offset + 16 * kKiB);
      EXPECT_TRUE(run_all(engine, {transfer}).errors.empty());
      for (std::size_t j = 0; j < markers.size(); ++j) {
        if (markers[j] < offset || markers[j] >= transfer.end_of_data) continue;
        EXPECT_EQ(memory_.data()[markers[j] - offset], static_cast<std::byte>('A' + j)) << markers[j];
      }
      EXPECT_EQ(memory_.data()[transfer.end_of_data - offset == 5 ? 0 : 8192], std::byte{0}) << "a hole reads as zeros";
    }
    close();
  }
}

INSTANTIATE_TEST_SUITE_P(Both, FileSourceEngineTest, ::testing::Values(BackendChoice::uring, BackendChoice::threads),
                         backend_name);

}  // namespace
}  // namespace infercluster::io
