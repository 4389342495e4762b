// SPDX-License-Identifier: Apache-2.0
#include "os/memory_map.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "os/file.h"
#include "os/limits.h"
#include "testing/child.h"

namespace infercluster::os {
namespace {

constexpr std::uint64_t kPage = 4096;

using testing::in_child;
using testing::refuse;

// How many of the system's pages of the mapping are in memory.
std::size_t pages_present(const Mapping& mapping) {
  std::vector<unsigned char> flags((mapping.data().size() + 4095) / kPage);
  EXPECT_EQ(::mincore(mapping.data().data(), mapping.data().size(), flags.data()), 0);
  return static_cast<std::size_t>(std::count_if(flags.begin(), flags.end(), [](auto flag) { return (flag & 1) != 0; }));
}

TEST(Mapping, IsZeroedWritableAndNotThereUntilPopulated) {
  const auto mapping = Mapping::create(kMiB + 1, {});
  ASSERT_TRUE(mapping);
  EXPECT_EQ(mapping->data().size(), kMiB + 1);
  EXPECT_EQ(pages_present(*mapping), 0U);
  ASSERT_TRUE(mapping->populate(kPage, 2 * kPage));
  EXPECT_GE(pages_present(*mapping), 2U);
  EXPECT_EQ(mapping->data()[kMiB], std::byte{0});
  mapping->data()[kMiB] = std::byte{7};
  ASSERT_TRUE(mapping->populate(0, kMiB + 1));
  EXPECT_EQ(pages_present(*mapping), 257U);
  EXPECT_EQ(mapping->data()[kMiB], std::byte{7});  // populating keeps what is there
}

TEST(Mapping, KernelsThatCannotPopulateTouchInstead) {
  EXPECT_EQ(
      in_child([] {
        const auto mapping = Mapping::create(kMiB, {});
        if (!mapping) return 1;
        mapping->data()[5000] = std::byte{7};
        constexpr std::uint32_t kPopulateWrite = 23;
        refuse({.number = SYS_madvise, .system_errno = EINVAL, .argument = 2, .mask = ~0U, .value = kPopulateWrite});
        if (!mapping->populate(0, kMiB)) return 2;
        if (pages_present(*mapping) != 256) return 3;
        return mapping->data()[5000] == std::byte{7} ? 0 : 4;
      }),
      0);
}

TEST(Mapping, PopulatingThatFailsSaysHowMuchWasWanted) {
  EXPECT_EQ(in_child([] {
              const auto mapping = Mapping::create(kMiB, {});
              if (!mapping) return 1;
              refuse({.number = SYS_madvise, .system_errno = ENOMEM});
              const Status status = mapping->populate(0, kMiB);
              if (status) return 2;
              if (status.error().code() != ErrorCode::out_of_memory) return 3;
              return status.error().message().find("1.0 MiB") != std::string::npos ? 0 : 4;
            }),
            0);
}

TEST(Mapping, TransparentHugePagesAreAligned) {
  const auto mapping = Mapping::create(3 * kMiB, {.pages = PageKind::transparent_huge});
  ASSERT_TRUE(mapping);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(mapping->data().data()) % (2 * kMiB), 0U);
  EXPECT_EQ(mapping->page_bytes(), 2 * kMiB);
  ASSERT_TRUE(mapping->populate(0, 3 * kMiB));
  EXPECT_EQ(pages_present(*mapping), 3 * kMiB / kPage);
}

TEST(Mapping, ExplicitHugePagesAreThereOrTheErrorSaysWhatIs) {
  const std::uint64_t free = free_explicit_huge_pages();
  const auto too_many = Mapping::create(free + 2 * kMiB, {.pages = PageKind::explicit_huge});
  ASSERT_FALSE(too_many);
  EXPECT_EQ(too_many.error().code(), ErrorCode::out_of_memory);
  EXPECT_NE(too_many.error().message().find(format_bytes(free) + " free"), std::string::npos)
      << too_many.error().message();
  if (free == 0) GTEST_SKIP() << "no huge pages are reserved";
  const auto mapping = Mapping::create(kMiB, {.pages = PageKind::explicit_huge});
  ASSERT_TRUE(mapping) << mapping.error().to_string();
  EXPECT_TRUE(mapping->populate(0, kMiB));
}

TEST(Mapping, WhatCannotBeMappedIsAnErrorWithBothFigures) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  // Half a GiB above what is mapped now, which is many TiB under a sanitizer.
  const std::uint64_t pages = std::stoull(read_small_file("/proc/self/statm", kMiB).value());
  const rlimit tight{.rlim_cur = pages * kPage + kGiB / 2, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &tight), 0);
  const auto mapping = Mapping::create(kGiB, {});
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  ASSERT_FALSE(mapping);
  EXPECT_EQ(mapping.error().code(), ErrorCode::out_of_memory);
  EXPECT_NE(mapping.error().message().find("1.00 GiB"), std::string::npos) << mapping.error().message();
  EXPECT_NE(mapping.error().message().find("free"), std::string::npos);
  EXPECT_FALSE(mapping.error().hint().empty());
}

TEST(Mapping, SizesThatCannotBeAreRefused) {
  EXPECT_EQ(Mapping::create(0, {}).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(Mapping::create(UINT64_MAX, {}).error().code(), ErrorCode::invalid_argument);
}

TEST(Mapping, RangesOutsideAreRefused) {
  const auto mapping = Mapping::create(100, {});
  ASSERT_TRUE(mapping);
  EXPECT_FALSE(mapping->populate(0, 101));
  EXPECT_FALSE(mapping->populate(101, 0));
  EXPECT_FALSE(mapping->release(50, UINT64_MAX));
  EXPECT_TRUE(mapping->populate(100, 0));
}

TEST(Mapping, ReleaseGivesBackWholePagesOnly) {
  const auto mapping = Mapping::create(4 * kPage + 100, {});
  ASSERT_TRUE(mapping);
  std::fill(mapping->data().begin(), mapping->data().end(), std::byte{1});
  ASSERT_TRUE(mapping->release(1, 3 * kPage));  // pages 1 and 2 lie wholly within
  EXPECT_EQ(pages_present(*mapping), 3U);
  EXPECT_EQ(mapping->data()[0], std::byte{1});
  EXPECT_EQ(mapping->data()[kPage - 1], std::byte{1});
  EXPECT_EQ(mapping->data()[kPage], std::byte{0});
  EXPECT_EQ(mapping->data()[3 * kPage - 1], std::byte{0});
  EXPECT_EQ(mapping->data()[3 * kPage], std::byte{1});
  ASSERT_TRUE(mapping->release(0, 4 * kPage + 100));  // to the end: the last, partial page goes too
  EXPECT_EQ(pages_present(*mapping), 0U);
}

TEST(Mapping, MovingKeepsTheAddressAndEmptiesTheSource) {
  Mapping mapping = Mapping::create(kMiB, {}).value();
  std::byte* const address = mapping.data().data();
  address[5] = std::byte{9};
  Mapping other = std::move(mapping);
  EXPECT_TRUE(mapping.data().empty());  // NOLINT(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
  EXPECT_EQ(other.data().data(), address);
  Mapping third = Mapping::create(kMiB, {}).value();
  third = std::move(other);
  EXPECT_EQ(third.data()[5], std::byte{9});
  EXPECT_TRUE(Mapping().set_on_fork(OnFork::exclude));
}

// The child asks the kernel whether the address is mapped.
bool child_has(const Mapping& mapping) {
  return in_child([&] {
           unsigned char flag = 0;
           return ::mincore(mapping.data().data(), kPage, &flag) == 0 ? 1 : 0;
         }) == 1;
}

TEST(Mapping, ForksLeaveOutWhatIsExcluded) {
  const auto mapping = Mapping::create(kMiB, {});
  ASSERT_TRUE(mapping);
  EXPECT_TRUE(child_has(*mapping));
  ASSERT_TRUE(mapping->set_on_fork(OnFork::exclude));
  EXPECT_FALSE(child_has(*mapping));
  ASSERT_TRUE(mapping->set_on_fork(OnFork::inherit));
  EXPECT_TRUE(child_has(*mapping));
}

}  // namespace
}  // namespace infercluster::os
