// SPDX-License-Identifier: Apache-2.0
// ThreadSanitizer finds in the double the races that a program has with a device: nothing in the double orders them.
// Built with it only.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "testing/gpu_double/gpu_double_test_helpers.h"

namespace infercluster::gpu_double {
namespace {

constexpr std::size_t kBytes = 4096;
constexpr int kRaceExitCode = 66;  // ThreadSanitizer's own

class Races : public DoubleTest {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    DoubleTest::SetUp();
    control.set_plan("delay_us=1000");
    pin(block, kBytes);
    address = allocate(kBytes);
    stream = make_stream();
    other = make_stream();
    event = make_event();
  }
  void TearDown() override {
    tear_down();
    DoubleTest::TearDown();
  }
  void tear_down() {
    cuda.cuStreamSynchronize(stream);
    cuda.cuStreamSynchronize(other);
    cuda.cuEventDestroy_v2(event);
    cuda.cuStreamDestroy_v2(stream);
    cuda.cuStreamDestroy_v2(other);
    cuda.cuMemFree_v2(address);
    cuda.cuMemHostUnregister(block.data());
  }
  // Runs `program` some times, since two accesses at one instant may escape ThreadSanitizer, and ends the process as if
  // there were nothing to report: the exit code is ThreadSanitizer's.
  [[noreturn]] void finish(const std::function<void()>& program) {
    constexpr int kRounds = 20;
    for (int round = 0; round < kRounds; ++round) {
      program();
      cuda.cuStreamSynchronize(stream);
      cuda.cuStreamSynchronize(other);
    }
    tear_down();
    std::exit(0);
  }
  void upload() const { cuda.cuMemcpyHtoDAsync_v2(address, block.data(), kBytes, stream); }

  HostBlock block{kBytes, 1};
  gpu::CuDevicePtr address = 0;
  gpu::CuStream stream = nullptr;
  gpu::CuStream other = nullptr;
  gpu::CuEvent event = nullptr;
};

TEST_F(Races, OfASlotThatIsFilledAgainTooEarly) {
  const auto too_early = [&] {
    upload();
    cuda.cuEventRecord(event, stream);
    cuda.cuEventQuery(event);  // asked, and the answer ignored
    block.fill(2);
  };
  EXPECT_EXIT(finish(too_early), ::testing::ExitedWithCode(kRaceExitCode), "data race");
}

TEST_F(Races, OfASlotThatIsReadTooEarly) {
  const auto too_early = [&] {
    cuda.cuMemcpyDtoHAsync_v2(block.data(), address, kBytes, stream);
    static_cast<void>(block.copy());
  };
  EXPECT_EXIT(finish(too_early), ::testing::ExitedWithCode(kRaceExitCode), "data race");
}

TEST_F(Races, OfStreamsThatNothingOrders) {
  const auto unordered = [&] {
    upload();
    cuda.cuMemcpyDtoHAsync_v2(block.data(), address, kBytes, other);
  };
  EXPECT_EXIT(finish(unordered), ::testing::ExitedWithCode(kRaceExitCode), "data race");
}

TEST_F(Races, AreNotSeenWhereThereAreNone) {
  const auto in_order = [&] {
    upload();
    upload();
    cuda.cuEventRecord(event, stream);
    cuda.cuStreamWaitEvent(other, event, 0);
    cuda.cuMemcpyDtoHAsync_v2(block.data(), address, kBytes, other);
    cuda.cuStreamSynchronize(other);
    block.fill(1);
    upload();
    cuda.cuEventRecord(event, stream);
    while (cuda.cuEventQuery(event) == gpu::CuResult::not_ready) {
    }
    block.fill(2);
  };
  EXPECT_EXIT(finish(in_order), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace infercluster::gpu_double
