// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <thread>

#include "testing/gpu_double/gpu_double_test_helpers.h"

namespace infercluster::gpu_double {
namespace {

constexpr std::size_t kBytes = 10'000;

class Streams : public DoubleTest {
 protected:
  void SetUp() override {
    DoubleTest::SetUp();
    pin(source, kBytes);
    address = allocate(2 * kBytes);
  }
  void TearDown() override {
    EXPECT_CUDA(success, cuda.cuMemFree_v2(address));
    unpin(source);
    DoubleTest::TearDown();
  }

  HostBlock source{kBytes, 1};
  gpu::CuDevicePtr address = 0;
};

TEST_F(Streams, RunTheirOperationsInOrder) {
  control.set_plan("delay_us=0..300,seed=3");
  const gpu::CuStream stream = make_stream();
  for (unsigned value = 0; value < 20; ++value) {
    ASSERT_CUDA(success, cuda.cuMemsetD8Async(address, static_cast<unsigned char>(value), kBytes, stream));
  }
  ASSERT_CUDA(success, cuda.cuStreamSynchronize(stream));
  EXPECT_EQ(read(address, kBytes), std::vector<std::byte>(kBytes, std::byte{19}));
  EXPECT_CUDA(success, cuda.cuStreamDestroy_v2(stream));
}

TEST_F(Streams, CompleteInAnyOrderAmongEachOther) {
  const gpu::CuStream first = make_stream();
  const gpu::CuStream second = make_stream();
  bool first_was_earlier = false;
  bool second_was_earlier = false;
  for (int round = 0; round < 1000 && !(first_was_earlier && second_was_earlier); ++round) {
    control.set_plan("delay_us=0..400,seed=" + std::to_string(round));
    const gpu::CuEvent first_done = make_event();
    const gpu::CuEvent second_done = make_event();
    ASSERT_CUDA(success, cuda.cuMemcpyHtoDAsync_v2(address, source.data(), kBytes, first));
    ASSERT_CUDA(success, cuda.cuEventRecord(first_done, first));
    ASSERT_CUDA(success, cuda.cuMemcpyHtoDAsync_v2(address + kBytes, source.data(), kBytes, second));
    ASSERT_CUDA(success, cuda.cuEventRecord(second_done, second));
    if (round % 2 == 0) {
      ASSERT_CUDA(success, cuda.cuEventSynchronize(second_done));
      if (cuda.cuEventQuery(first_done) == gpu::CuResult::not_ready) second_was_earlier = true;
    } else {
      ASSERT_CUDA(success, cuda.cuEventSynchronize(first_done));
      if (cuda.cuEventQuery(second_done) == gpu::CuResult::not_ready) first_was_earlier = true;
    }
    ASSERT_CUDA(success, cuda.cuStreamSynchronize(first));
    ASSERT_CUDA(success, cuda.cuStreamSynchronize(second));
    EXPECT_CUDA(success, cuda.cuEventDestroy_v2(first_done));
    EXPECT_CUDA(success, cuda.cuEventDestroy_v2(second_done));
  }
  EXPECT_TRUE(first_was_earlier);
  EXPECT_TRUE(second_was_earlier);
  EXPECT_CUDA(success, cuda.cuStreamDestroy_v2(first));
  EXPECT_CUDA(success, cuda.cuStreamDestroy_v2(second));
}

TEST_F(Streams, WaitForEventsOfOthers) {
  for (int round = 0; round < 50; ++round) {
    control.set_plan("delay_us=0..200,seed=" + std::to_string(round));
    const gpu::CuStream writer = make_stream();
    const gpu::CuStream reader = make_stream();
    const gpu::CuEvent written = make_event();
    ASSERT_CUDA(success, cuda.cuMemsetD8Async(address, 0, kBytes, writer));
    ASSERT_CUDA(success, cuda.cuMemcpyHtoDAsync_v2(address, source.data(), kBytes, writer));
    ASSERT_CUDA(success, cuda.cuEventRecord(written, writer));
    ASSERT_CUDA(success, cuda.cuStreamWaitEvent(reader, written, 0));
    EXPECT_CUDA(success, cuda.cuEventDestroy_v2(written));  // the wait is already queued
    ASSERT_CUDA(success, cuda.cuMemcpyDtoDAsync_v2(address + kBytes, address, kBytes, reader));
    ASSERT_CUDA(success, cuda.cuStreamSynchronize(reader));
    EXPECT_EQ(read(address + kBytes, kBytes), source.copy());
    EXPECT_CUDA(success, cuda.cuStreamDestroy_v2(writer));
    EXPECT_CUDA(success, cuda.cuStreamDestroy_v2(reader));
  }
}

TEST_F(Streams, EventsRecordAPosition) {
  const gpu::CuStream stream = make_stream();
  const gpu::CuEvent event = make_event();
  EXPECT_CUDA(success, cuda.cuEventQuery(event));  // never recorded
  control.hold();
  ASSERT_CUDA(success, cuda.cuMemcpyHtoDAsync_v2(address, source.data(), kBytes, stream));
  ASSERT_CUDA(success, cuda.cuEventRecord(event, stream));
  EXPECT_CUDA(not_ready, cuda.cuEventQuery(event));
  EXPECT_CUDA(not_ready, cuda.cuStreamQuery(stream));
  control.release();
  ASSERT_CUDA(success, cuda.cuEventSynchronize(event));
  EXPECT_CUDA(success, cuda.cuEventQuery(event));
  EXPECT_EQ(read(address, kBytes), source.copy());
  control.hold();
  ASSERT_CUDA(success, cuda.cuMemsetD8Async(address, 0, kBytes, stream));
  EXPECT_CUDA(success, cuda.cuEventQuery(event));  // what comes later does not concern it
  ASSERT_CUDA(success, cuda.cuEventRecord(event, stream));
  EXPECT_CUDA(not_ready, cuda.cuEventQuery(event));
  control.release();
  ASSERT_CUDA(success, cuda.cuStreamSynchronize(stream));
  EXPECT_CUDA(success, cuda.cuEventDestroy_v2(event));
  EXPECT_CUDA(success, cuda.cuStreamDestroy_v2(stream));
}

TEST_F(Streams, DefaultStreamIsOrderedWithBlockingOnes) {
  control.set_plan("delay_us=0..300,seed=11");
  gpu::CuStream stream = nullptr;
  ASSERT_CUDA(success, cuda.cuStreamCreate(&stream, 0));
  for (int round = 0; round < 20; ++round) {
    ASSERT_CUDA(success, cuda.cuMemsetD8Async(address, static_cast<unsigned char>(round), kBytes, stream));
    ASSERT_CUDA(success, cuda.cuMemcpyDtoDAsync_v2(address + kBytes, address, kBytes, nullptr));
    ASSERT_CUDA(success, cuda.cuMemsetD8Async(address, 0xFF, kBytes, stream));
    ASSERT_CUDA(success, cuda.cuStreamSynchronize(nullptr));
    EXPECT_EQ(read(address + kBytes, kBytes), std::vector<std::byte>(kBytes, static_cast<std::byte>(round)));
  }
  ASSERT_CUDA(success, cuda.cuStreamSynchronize(stream));
  EXPECT_CUDA(success, cuda.cuStreamDestroy_v2(stream));
}

TEST_F(Streams, DestroyedWhileBusyTheyRunToTheirEnd) {
  const gpu::CuStream stream = make_stream();
  control.hold();
  ASSERT_CUDA(success, cuda.cuMemcpyHtoDAsync_v2(address, source.data(), kBytes, stream));
  EXPECT_CUDA(success, cuda.cuStreamDestroy_v2(stream));
  EXPECT_CUDA(invalid_handle, cuda.cuStreamSynchronize(stream));
  EXPECT_CUDA(invalid_handle, cuda.cuMemcpyHtoDAsync_v2(address, source.data(), kBytes, stream));
  EXPECT_TRUE(control.is_poison(address, kBytes));
  EXPECT_EQ(control.counter("streams_destroyed_in_flight"), 1U);
  control.release();
  while (control.counter("threads") != 0) std::this_thread::yield();
  EXPECT_EQ(read(address, kBytes), source.copy());
}

TEST_F(Streams, HaveAThreadOnlyWhileUsed) {
  const gpu::CuStream stream = make_stream();
  EXPECT_EQ(control.counter("threads"), 0U);
  ASSERT_CUDA(success, cuda.cuMemsetD8Async(address, 0, kBytes, stream));
  EXPECT_EQ(control.counter("threads"), 1U);
  ASSERT_CUDA(success, cuda.cuStreamSynchronize(stream));
  EXPECT_CUDA(success, cuda.cuStreamDestroy_v2(stream));
  EXPECT_EQ(control.counter("threads"), 0U);
}

TEST_F(Streams, HandlesAreNeverReused) {
  const gpu::CuEvent event = make_event();
  EXPECT_CUDA(success, cuda.cuEventDestroy_v2(event));
  EXPECT_CUDA(invalid_handle, cuda.cuEventDestroy_v2(event));
  EXPECT_CUDA(invalid_handle, cuda.cuEventQuery(event));
  EXPECT_CUDA(invalid_handle, cuda.cuEventRecord(event, nullptr));
  const gpu::CuEvent next = make_event();
  EXPECT_NE(next, event);
  EXPECT_CUDA(success, cuda.cuEventDestroy_v2(next));
}

class Contexts : public DoubleTest {};

TEST_F(Contexts, AreNeededByCalls) {
  gpu::CuDevicePtr address = 0;
  ASSERT_CUDA(success, cuda.cuCtxPopCurrent_v2(nullptr));
  EXPECT_CUDA(invalid_context, cuda.cuMemAlloc_v2(&address, 1));
  gpu::CuStream stream = nullptr;
  EXPECT_CUDA(invalid_context, cuda.cuStreamCreate(&stream, 0));
  EXPECT_CUDA(invalid_context, cuda.cuCtxPopCurrent_v2(nullptr));
  ASSERT_CUDA(success, cuda.cuCtxPushCurrent_v2(context));
}

TEST_F(Contexts, AreNeededByReleasesTooUnlessAFaultTookThem) {
  violations_expected = 1;
  const gpu::CuDevicePtr first = allocate(1);
  const gpu::CuDevicePtr second = allocate(1);
  ASSERT_CUDA(success, cuda.cuCtxPopCurrent_v2(nullptr));
  EXPECT_CUDA(invalid_context, cuda.cuMemFree_v2(first));  // a mistake, counted
  control.set_plan("cuCtxPushCurrent:1=CUDA_ERROR_UNKNOWN");
  EXPECT_CUDA(unknown, cuda.cuCtxPushCurrent_v2(context));
  EXPECT_CUDA(invalid_context, cuda.cuMemFree_v2(second));  // there was no other way
  EXPECT_EQ(control.counter("allocations"), 0U);
  ASSERT_CUDA(success, cuda.cuCtxPushCurrent_v2(context));
}

TEST_F(Contexts, AreCurrentPerThread) {
  std::thread([&] {
    gpu::CuDevicePtr address = 0;
    EXPECT_CUDA(invalid_context, cuda.cuMemAlloc_v2(&address, 1));
  }).join();
}

TEST_F(Contexts, OfOtherDevicesAreToldApart) {
  gpu::CuContext other = nullptr;
  const gpu::CuStream stream = make_stream();
  const gpu::CuDevicePtr address = allocate(4096);
  EXPECT_EQ(control.counter("contexts_created:1"), 0U);
  ASSERT_CUDA(success, cuda.cuDevicePrimaryCtxRetain(&other, 1));
  EXPECT_EQ(control.counter("contexts_created:1"), 1U);
  ASSERT_CUDA(success, cuda.cuCtxPushCurrent_v2(other));
  EXPECT_CUDA(invalid_handle, cuda.cuMemsetD8Async(address, 0, 4096, stream));
  EXPECT_CUDA(invalid_value, cuda.cuMemsetD8Async(address, 0, 4096, nullptr));
  const gpu::CuEvent event = make_event();
  ASSERT_CUDA(success, cuda.cuCtxPopCurrent_v2(nullptr));
  EXPECT_CUDA(invalid_handle, cuda.cuEventRecord(event, stream));
  EXPECT_CUDA(success, cuda.cuEventDestroy_v2(event));
  EXPECT_CUDA(success, cuda.cuStreamDestroy_v2(stream));
  EXPECT_CUDA(success, cuda.cuMemFree_v2(address));
  EXPECT_CUDA(success, cuda.cuDevicePrimaryCtxRelease_v2(1));
  EXPECT_CUDA(invalid_context, cuda.cuDevicePrimaryCtxRelease_v2(1));
  gpu::CuContext third = nullptr;
  EXPECT_CUDA(invalid_device, cuda.cuDevicePrimaryCtxRetain(&third, 2));
}

TEST_F(Contexts, TakeWhatIsLeftWithThem) {
  gpu::CuContext other = nullptr;
  ASSERT_CUDA(success, cuda.cuDevicePrimaryCtxRetain(&other, 1));
  ASSERT_CUDA(success, cuda.cuCtxPushCurrent_v2(other));
  const gpu::CuStream stream = make_stream();
  const gpu::CuDevicePtr address = allocate(4096);
  make_event();
  ASSERT_CUDA(success, cuda.cuMemsetD8Async(address, 0, 4096, stream));
  EXPECT_CUDA(success, cuda.cuDevicePrimaryCtxRelease_v2(1));
  EXPECT_EQ(control.counter("contexts_destroyed_in_use"), 3U);
  EXPECT_EQ(control.counter("live"), 1U);  // device 0's context
  EXPECT_CUDA(context_is_destroyed, cuda.cuStreamSynchronize(stream));
  EXPECT_CUDA(success, cuda.cuCtxPopCurrent_v2(nullptr));
  control.reset();
  SetUp();
}

}  // namespace
}  // namespace infercluster::gpu_double
