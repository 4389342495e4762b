// SPDX-License-Identifier: Apache-2.0
// Each call of CUDA and cuFile fails in turn: one clear error or another way, nothing left behind, no wrong byte.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "gpu/copier.h"
#include "gpu/cufile.h"
#include "gpu/event.h"
#include "gpu/gpu_test_helpers.h"
#include "testing/temp_dir.h"

namespace infercluster::gpu {
namespace {

constexpr std::uint64_t kSlot = 4 * kKiB;
constexpr std::uint64_t kTarget = 4 * kSlot;

std::size_t thread_count() {
  std::size_t count = 0;
  DIR* const tasks = ::opendir("/proc/self/task");
  while (const dirent* const entry = ::readdir(tasks)) count += entry->d_name[0] != '.' ? 1 : 0;
  ::closedir(tasks);
  return count;
}

// A thread that was joined may still be listed for a moment while the kernel ends it.
bool falls_to(std::size_t threads) {
  const auto deadline = steady_clock().now() + std::chrono::seconds(10);
  while (thread_count() > threads && steady_clock().now() < deadline) std::this_thread::yield();
  return thread_count() <= threads;
}

class FaultOf : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    set_log_sink([](LogLevel, std::string_view) {});  // destructors log what a plan lets fail in them
    std::string content(kTarget, '\0');
    for (std::uint64_t place = 0; place < kTarget; ++place) content[place] = static_cast<char>(pattern(place));
    fd_ = Fd(::open(directory_.write("file", content).c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_TRUE(fd_.valid());
  }
  void TearDown() override {
    set_log_sink({});
    GpuTest::TearDown();
  }

  // Fills a target through a ring of one slot, by copies and by rows, and compares.
  Status by_ring(const std::shared_ptr<Device>& device) const {
    IC_TRY(const auto target, DeviceMemory::allocate(device, kTarget));
    IC_TRY(const auto arena, memory::Arena::allocate(2 * kSlot));
    IC_TRY(const auto pinned, Pinned::make(device, arena->span()));
    IC_TRY(const auto mark, Event::create(device));
    IC_CHECK(mark->record(StreamId{0}));
    IC_TRY(const auto copier, make_copier(device, {StreamId{0}}));
    IC_CHECK(copier->wait_for(*mark));
    for (std::uint64_t slot = 0; slot < 4; ++slot) {
      for (std::uint64_t at = 0; at < kSlot; ++at) arena->data()[at] = pattern(slot * kSlot + at);
      const memory::Span from = arena->span().part(0, kSlot);
      const memory::Span to = target->span().part(slot * kSlot, kSlot);
      if (slot % 2 == 0) {
        IC_CHECK(copier->copy(from.part(0, 1024), to.part(0, 1024)));
        IC_CHECK(copier->copy(from.part(1024, kSlot - 1024), to.part(1024, kSlot - 1024)));
      } else {  // every other KiB, then those between
        const std::uint64_t reach = kSlot - kKiB;
        IC_CHECK(copier->copy_rows(from.part(0, reach), to.part(0, reach), {2, 1024, 2048, 2048}));
        IC_CHECK(copier->copy_rows(from.part(1024, reach), to.part(1024, reach), {2, 1024, 2048, 2048}));
      }
      IC_TRY(const auto fence, copier->fence());
      control_.finish();  // so that each run makes the same calls
      IC_TRY(const bool passed, copier->passed(fence));
      EXPECT_TRUE(passed);
    }
    IC_CHECK(copier->drain());
    return compare(device, *target);
  }

  Status by_cufile(const std::shared_ptr<Device>& device) const {
    IC_TRY(auto target, DeviceMemory::allocate(device, kTarget));
    IC_TRY(const auto cufile, CuFile::open(device));
    IC_TRY(const auto file, cufile->register_file(fd_));
    IC_TRY(const auto buffer, cufile->register_buffer(target));
    IC_TRY(const std::uint64_t got, cufile->read(*file, {target->span().address, 0, kTarget, 0}));
    if (got != kTarget) return Error(ErrorCode::io, "a short read");
    return compare(device, *target);
  }

  static Status compare(const std::shared_ptr<Device>& device, const DeviceMemory& target) {
    std::vector<std::byte> bytes(kTarget);
    IC_CHECK(copy_to_host(device, target.span(), bytes.data()));
    for (std::uint64_t place = 0; place < kTarget; ++place) {
      EXPECT_EQ(bytes[place], pattern(place)) << "no error, and a wrong byte at " << place;
      if (bytes[place] != pattern(place)) break;
    }
    return {};
  }

  template <typename Body>
  Status on_device(const Body& body) const {
    IC_TRY(const auto device, Device::open(1));
    return body(device);
  }

  // Runs `body` with the fault at each place where there is a call, and checks what is left each time.
  template <typename Body>
  void sweep(const std::string& counted, const std::string& fault, const Body& body) {
    control_.set_plan("");
    ASSERT_TRUE(on_device(body).ok());
    const std::uint64_t calls = control_.counter("calls:" + counted);
    ASSERT_GT(calls, 3U);
    const std::size_t threads = thread_count();
    std::uint64_t errors = 0;
    for (std::uint64_t at = 1; at <= calls; ++at) {
      const std::string plan = counted + ":" + std::to_string(at) + "=" + fault;
      control_.set_plan(plan);
      const Status status = on_device(body);
      if (!status.ok()) {
        ++errors;
        EXPECT_NE(status.error().message().find("cannot "), std::string::npos)
            << plan << ": " << status.error().message();
        EXPECT_NE(status.error().message().find(" failed with "), std::string::npos)
            << plan << ": " << status.error().message();
      }
      control_.set_plan("");
      EXPECT_EQ(control_.counter("live"), 0U) << plan;
      EXPECT_EQ(control_.counter("violations"), 0U) << plan;
      EXPECT_EQ(control_.counter("contexts_destroyed_in_use"), 0U) << plan;
      EXPECT_TRUE(falls_to(threads)) << plan;
      if (HasFailure()) return;
    }
    EXPECT_GT(errors, calls / 3) << "most calls are needed; the others are releases, and questions with another way";
  }

  testing::TempDir directory_;
  Fd fd_;
};

TEST_F(FaultOf, EachCallOfTheRingPath) {
  sweep("any", "CUDA_ERROR_UNKNOWN", [this](const auto& device) { return by_ring(device); });
}

TEST_F(FaultOf, EachCallOfTheRingPathLosesTheContext) {
  sweep("any", "CUDA_ERROR_LAUNCH_FAILED", [this](const auto& device) { return by_ring(device); });
}

TEST_F(FaultOf, EachCopyOfTheRingPathFailsOnTheDevice) {
  sweep("async", "CUDA_ERROR_ILLEGAL_ADDRESS", [this](const auto& device) { return by_ring(device); });
}

TEST_F(FaultOf, EachCallOfTheCuFilePath) {
  sweep("any", "CUDA_ERROR_UNKNOWN", [this](const auto& device) { return by_cufile(device); });
}

}  // namespace
}  // namespace infercluster::gpu
