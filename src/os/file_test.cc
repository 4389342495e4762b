// SPDX-License-Identifier: Apache-2.0
#include "os/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "testing/temp_dir.h"

namespace infercluster::os {
namespace {

namespace fs = std::filesystem;
using testing::TempDir;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string content_of(const std::string& path) {
  auto content = read_small_file(path, 1 << 20);
  return content ? std::move(content).value() : "error: " + content.error().to_string();
}

TEST(OpenForReading, GivesACloseOnExecDescriptorThatMayBlock) {
  const TempDir dir;
  const auto fd = open_for_reading(dir.write("a", "hello"));
  ASSERT_TRUE(fd) << fd.error().to_string();
  EXPECT_EQ(::fcntl(fd->get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  EXPECT_EQ(::fcntl(fd->get(), F_GETFL) & (O_NONBLOCK | O_DIRECT), 0);
}

TEST(OpenForReading, RefusesWhatIsNoRegularFileWithoutBlocking) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo(dir.file("fifo").c_str(), 0600), 0);
  fs::create_symlink("/dev/null", dir.file("link to a device"));
  for (const OpenMode mode : {OpenMode::buffered, OpenMode::direct}) {
    for (const std::string& path :
         {dir.file("fifo"), dir.path().string(), std::string("/dev/null"), dir.file("link to a device")}) {
      const auto fd = open_for_reading(path, mode);
      ASSERT_FALSE(fd) << path;
      EXPECT_EQ(fd.error().code(), ErrorCode::invalid_argument) << path;
      EXPECT_EQ(fd.error().path(), path);
    }
  }
  EXPECT_NE(open_for_reading(dir.file("fifo")).error().message().find("FIFO"), std::string::npos);
}

TEST(OpenForReading, AMissingFileIsNotFoundAndNamed) {
  const TempDir dir;
  const auto fd = open_for_reading(dir.file("absent"));
  ASSERT_FALSE(fd);
  EXPECT_EQ(fd.error().code(), ErrorCode::not_found);
  EXPECT_EQ(fd.error().system_errno(), ENOENT);
  EXPECT_EQ(fd.error().path(), dir.file("absent"));
}

TEST(OpenForReading, AMountWithoutDirectIoGivesEinval) {
  // Files of /proc are regular, and can be opened, but never with O_DIRECT.
  const auto fd = open_for_reading("/proc/self/status", OpenMode::direct);
  ASSERT_FALSE(fd);
  EXPECT_EQ(fd.error().system_errno(), EINVAL);
  EXPECT_NE(fd.error().message().find("O_DIRECT"), std::string::npos);
}

TEST(ReopenForReading, StaysWithTheFileWhenThePathIsReplaced) {
  const TempDir dir;
  const std::string path = dir.write("a", "old");
  const auto first = open_for_reading(path);
  ASSERT_TRUE(first);
  ASSERT_TRUE(write_file_atomically(path, bytes_of("new")));
  const auto second = reopen_for_reading(*first, OpenMode::buffered);
  ASSERT_TRUE(second) << second.error().to_string();
  EXPECT_EQ(identity_of(*first).value(), identity_of(*second).value());
  std::string text(3, ' ');
  ASSERT_TRUE(read_exactly(*second, std::as_writable_bytes(std::span(text)), 0, path));
  EXPECT_EQ(text, "old");
  EXPECT_EQ(content_of(path), "new");
}

TEST(Identity, ChangesWithSizeTimesAndInode) {
  const TempDir dir;
  const std::string path = dir.write("a", "hello");
  const auto fd = open_for_reading(path);
  ASSERT_TRUE(fd);
  const FileIdentity before = identity_of(*fd).value();
  EXPECT_EQ(before.size, 5U);
  EXPECT_EQ(identity_of(*fd).value(), before);

  timespec times[2] = {{.tv_sec = 1, .tv_nsec = 2}, {.tv_sec = 3, .tv_nsec = 4}};
  ASSERT_EQ(::futimens(fd->get(), times), 0);
  const FileIdentity touched = identity_of(*fd).value();
  EXPECT_NE(touched, before);
  EXPECT_EQ(touched.mtime_ns, 3'000'000'004);

  ASSERT_EQ(::truncate(path.c_str(), 4), 0);
  EXPECT_EQ(identity_of(*fd).value().size, 4U);

  ASSERT_TRUE(write_file_atomically(path, bytes_of("hello")));
  const auto replaced = open_for_reading(path);
  ASSERT_TRUE(replaced);
  EXPECT_NE(identity_of(*replaced).value().inode, before.inode);
}

TEST(ReadExactly, ReadsARangeAndNoMore) {
  const TempDir dir;
  const std::string path = dir.write("a", "0123456789");
  const auto fd = open_for_reading(path);
  ASSERT_TRUE(fd);
  std::string text(6, '.');
  ASSERT_TRUE(read_exactly(*fd, std::as_writable_bytes(std::span(text)).subspan(1, 4), 3, path));
  EXPECT_EQ(text, ".3456.");
  EXPECT_TRUE(read_exactly(*fd, {}, 1000, path));
}

TEST(ReadExactly, LongerThanOneRequest) {
  const TempDir dir;
  std::string content(40 << 20, 'a');
  for (std::size_t i = 0; i < content.size(); i += 4099) content[i] = static_cast<char>('a' + i % 26);
  const std::string path = dir.write("a", content);
  const auto fd = open_for_reading(path);
  ASSERT_TRUE(fd);
  std::string text(content.size() - 5, '.');
  ASSERT_TRUE(read_exactly(*fd, std::as_writable_bytes(std::span(text)), 5, path));
  EXPECT_TRUE(text == std::string_view(content).substr(5));
}

TEST(ReadExactly, TheEndOfTheFileIsAnErrorWithItsOffset) {
  const TempDir dir;
  const std::string path = dir.write("a", "0123456789");
  const auto fd = open_for_reading(path);
  ASSERT_TRUE(fd);
  std::string text(8, '.');
  const Status status = read_exactly(*fd, std::as_writable_bytes(std::span(text)), 4, path);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::corrupt);
  EXPECT_EQ(status.error().offset(), 10U);
  EXPECT_EQ(status.error().path(), path);
}

TEST(ReadExactly, OffsetsThatNoFileHasAreRefused) {
  const TempDir dir;
  const std::string path = dir.write("a", "0123456789");
  const auto fd = open_for_reading(path);
  ASSERT_TRUE(fd);
  std::string text(8, '.');
  for (const std::uint64_t offset : {UINT64_MAX, static_cast<std::uint64_t>(INT64_MAX) - 7}) {
    const Status status = read_exactly(*fd, std::as_writable_bytes(std::span(text)), offset, path);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), ErrorCode::invalid_argument);
  }
}

TEST(ReadSmallFile, UpToItsLimit) {
  const TempDir dir;
  const std::string path = dir.write("a", "0123456789");
  EXPECT_EQ(read_small_file(path, 10).value(), "0123456789");
  const auto refused = read_small_file(path, 9);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::too_large);
  EXPECT_EQ(read_small_file(dir.write("empty", ""), 0).value(), "");
}

TEST(ReadSmallFile, FilesThatSayTheyAreEmptyAreReadAndLimitedToo) {
  EXPECT_NE(read_small_file("/proc/self/status", 1 << 20).value().find("VmHWM:"), std::string::npos);
  const auto refused = read_small_file("/proc/self/status", 10);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::too_large);
}

TEST(WriteFileAtomically, WritesAndReplaces) {
  const TempDir dir;
  const std::string path = dir.file("a");
  ASSERT_TRUE(write_file_atomically(path, bytes_of("one")));
  EXPECT_EQ(content_of(path), "one");
  ASSERT_TRUE(write_file_atomically(path, bytes_of("")));
  EXPECT_EQ(content_of(path), "");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 1);  // no temporary file is left
}

TEST(WriteFileAtomically, RespectsTheUmask) {
  const TempDir dir;
  const mode_t before = ::umask(027);
  const Status status = write_file_atomically(dir.file("a"), bytes_of("x"));
  ::umask(before);
  ASSERT_TRUE(status);
  EXPECT_EQ(fs::status(dir.file("a")).permissions(), static_cast<fs::perms>(0640));
}

TEST(WriteFileAtomically, AMappingOfTheOldFileKeepsTheOldBytes) {
  const TempDir dir;
  const std::string path = dir.write("a", "old");
  const auto fd = open_for_reading(path);
  ASSERT_TRUE(fd);
  void* const map = ::mmap(nullptr, 3, PROT_READ, MAP_SHARED, fd->get(), 0);
  ASSERT_NE(map, MAP_FAILED);
  ASSERT_TRUE(write_file_atomically(path, bytes_of("new")));
  EXPECT_EQ(std::string_view(static_cast<const char*>(map), 3), "old");
  ::munmap(map, 3);
}

TEST(WriteFileAtomically, ALinkIsReplacedAndItsTargetKept) {
  const TempDir dir;
  dir.write("target", "old");
  fs::create_symlink("target", dir.file("link"));
  ASSERT_TRUE(write_file_atomically(dir.file("link"), bytes_of("new")));
  EXPECT_EQ(content_of(dir.file("target")), "old");
  EXPECT_EQ(content_of(dir.file("link")), "new");
}

TEST(WriteFileAtomically, AFailureLeavesNothingBehind) {
  const TempDir dir;
  fs::create_directory(dir.file("folder"));
  const Status onto_folder = write_file_atomically(dir.file("folder"), bytes_of("x"));
  ASSERT_FALSE(onto_folder);
  EXPECT_EQ(onto_folder.error().path(), dir.file("folder"));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 1);

  const Status nowhere = write_file_atomically(dir.file("absent/a"), bytes_of("x"));
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code(), ErrorCode::not_found);
}

TEST(WriteFileAtomically, AFullDeviceLeavesTheOldFile) {
  const TempDir dir;
  const std::string path = dir.write("a", "old");
  // The file size limit stands in for a full device: the write fails half-way.
  const auto before = ::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit tight{.rlim_cur = 4096, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  const std::string large(100'000, 'x');
  const Status status = write_file_atomically(path, bytes_of(large));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  ::signal(SIGXFSZ, before);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().system_errno(), EFBIG);
  EXPECT_EQ(status.error().path(), path);
  EXPECT_EQ(content_of(path), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 1);
}

}  // namespace
}  // namespace infercluster::os
