// SPDX-License-Identifier: Apache-2.0
#include "io/resident_limit.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/assert.h"
#include "base/fd.h"
#include "io/backend.h"
#include "os/file.h"
#include "testing/pattern.h"
#include "testing/temp_dir.h"

namespace infercluster::io {
namespace {

constexpr std::size_t kPage = 4096;

// Pages whose first touch waits until it is told to go on: a copy into one is held where it can be counted.
class HeldPages {
 public:
  // Null: this process may not hold up the kernel's own faults (userfaultfd).
  static std::unique_ptr<HeldPages> open(std::size_t count) {
    auto pages = std::unique_ptr<HeldPages>(new HeldPages(count));
    pages->fd_ = Fd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)));
    if (!pages->fd_.valid()) return nullptr;
    uffdio_api api{.api = UFFD_API, .features = 0, .ioctls = 0};
    if (::ioctl(pages->fd_.get(), UFFDIO_API, &api) != 0) return nullptr;
    uffdio_register area{.range = pages->range(0, count), .mode = UFFDIO_REGISTER_MODE_MISSING, .ioctls = 0};
    if (::ioctl(pages->fd_.get(), UFFDIO_REGISTER, &area) != 0) return nullptr;
    return pages;
  }
  ~HeldPages() { ::munmap(memory_, count_ * kPage); }
  HeldPages(const HeldPages&) = delete;
  HeldPages& operator=(const HeldPages&) = delete;

  [[nodiscard]] std::byte* page(std::size_t index) { return memory_ + index * kPage; }

  // The next page that somebody waits for; nullopt: nobody did within that time.
  std::optional<std::size_t> next_held(std::chrono::milliseconds timeout) {
    pollfd ready{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, static_cast<int>(timeout.count())) != 1) return std::nullopt;
    uffd_msg message{};
    if (::read(fd_.get(), &message, sizeof message) != sizeof message) return std::nullopt;
    const auto address = static_cast<std::uintptr_t>(message.arg.pagefault.address);
    return (address - reinterpret_cast<std::uintptr_t>(memory_)) / kPage;
  }

  void let_go(std::size_t index) {
    uffdio_zeropage zero{.range = range(index, 1), .mode = 0, .zeropage = 0};
    IC_ASSERT(::ioctl(fd_.get(), UFFDIO_ZEROPAGE, &zero) == 0);
  }

 private:
  explicit HeldPages(std::size_t count) : count_(count) {
    void* memory = ::mmap(nullptr, count * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    IC_ASSERT(memory != MAP_FAILED);
    memory_ = static_cast<std::byte*>(memory);
  }
  [[nodiscard]] uffdio_range range(std::size_t index, std::size_t count) {
    return {.start = reinterpret_cast<std::uintptr_t>(page(index)), .len = count * kPage};
  }

  std::size_t count_;
  std::byte* memory_ = nullptr;
  Fd fd_;
};

class ResidentLimitTest : public ::testing::TestWithParam<BackendChoice> {};

TEST_P(ResidentLimitTest, NoMoreCopiesRunAtOnceAndReadsOfTheDevicePassThem) {
  using std::chrono::milliseconds;
  if (GetParam() == BackendChoice::uring && !probe_uring().ok()) GTEST_SKIP() << probe_uring().error().to_string();
  const std::size_t limit = resident_copies_max();
  const std::size_t count = 3 * limit;
  testing::TempDir directory;
  const Fd file = os::open_for_reading(directory.write("data", testing::pattern_text(count * kPage))).value();
  testing::AlignedMemory other(kPage);
  const auto backend = std::move(open_backend({.choice = GetParam(),
                                               .depth = static_cast<unsigned>(count) + 1,
                                               .threads = static_cast<unsigned>(count) + 1}))
                           .value()
                           .backend;
  // Goes before the backend, which waits for its copies.
  const auto pages = HeldPages::open(count);
  if (pages == nullptr) GTEST_SKIP() << "userfaultfd is refused";
  std::array<OperationResult, 1> results;
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_TRUE(backend->submit({.fd = file.get(),
                                 .offset = i * kPage,
                                 .memory = pages->page(i),
                                 .length = kPage,
                                 .hint = ReadHint::resident,
                                 .token = i}));
  }
  std::vector<std::size_t> held;
  for (std::size_t done = 0; done < count; ++done) {
    EXPECT_EQ(backend->wait(results, milliseconds(0)), 0U);  // hands over what may run
    while (held.size() < std::min(limit, count - done)) {
      const auto page = pages->next_held(milliseconds(10'000));
      ASSERT_TRUE(page) << held.size() << " copies run, and could be " << limit;
      if (std::find(held.begin(), held.end(), *page) == held.end()) held.push_back(*page);
    }
    if (done == 0) {
      EXPECT_EQ(pages->next_held(milliseconds(50)), std::nullopt) << "more than " << limit << " copies run at once";
      ASSERT_TRUE(
          backend->submit({.fd = file.get(), .offset = 0, .memory = other.data(), .length = kPage, .token = count}));
      ASSERT_EQ(backend->wait(results, milliseconds(10'000)), 1U);
      EXPECT_EQ(results[0].token, count);
    }
    pages->let_go(held.back());
    ASSERT_EQ(backend->wait(results, milliseconds(10'000)), 1U);
    EXPECT_EQ(results[0].token, held.back());
    EXPECT_EQ(testing::first_difference({pages->page(held.back()), kPage}, held.back() * kPage), kPage);
    held.pop_back();
  }
}

INSTANTIATE_TEST_SUITE_P(Both, ResidentLimitTest, ::testing::Values(BackendChoice::uring, BackendChoice::threads),
                         [](const auto& tested) { return tested.param == BackendChoice::uring ? "Uring" : "Threads"; });

}  // namespace
}  // namespace infercluster::io
