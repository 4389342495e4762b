// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "testing/gpu_double/gpu_double_test_helpers.h"

namespace infercluster::gpu_double {
namespace {

constexpr std::size_t kBytes = 10'000;

using Faults = DoubleTest;

TEST_F(Faults, HitTheNthCall) {
  control.set_plan("cuMemAlloc:2=CUDA_ERROR_OUT_OF_MEMORY");
  gpu::CuDevicePtr address = 0;
  EXPECT_CUDA(success, cuda.cuMemAlloc_v2(&address, 1));
  gpu::CuDevicePtr other = 0;
  EXPECT_CUDA(out_of_memory, cuda.cuMemAlloc_v2(&other, 1));
  EXPECT_EQ(other, 0U);
  EXPECT_CUDA(success, cuda.cuMemFree_v2(address));
  EXPECT_CUDA(success, cuda.cuMemAlloc_v2(&address, 1));
  EXPECT_CUDA(success, cuda.cuMemFree_v2(address));
  EXPECT_EQ(control.counter("faults_injected"), 1U);
  EXPECT_EQ(control.counter("calls:cuMemAlloc"), 3U);
  EXPECT_EQ(control.counter("calls:any"), 5U);
}

TEST_F(Faults, HitAllCallsFromTheNthOnOrEach) {
  control.set_plan("cuEventCreate:2+=700; cuDeviceGet:*=CUDA_ERROR_INVALID_DEVICE");
  const gpu::CuEvent event = make_event();
  gpu::CuEvent other = nullptr;
  EXPECT_CUDA(illegal_address, cuda.cuEventCreate(&other, 0));
  EXPECT_CUDA(illegal_address, cuda.cuEventCreate(&other, 0));
  gpu::CuDevice device = -1;
  EXPECT_CUDA(invalid_device, cuda.cuDeviceGet(&device, 0));
  EXPECT_CUDA(invalid_device, cuda.cuDeviceGet(&device, 0));
  control.set_plan("");
  EXPECT_CUDA(success, cuda.cuDeviceGet(&device, 0));
  EXPECT_CUDA(success, cuda.cuEventDestroy_v2(event));
}

TEST_F(Faults, LetReleasesDoTheirWork) {
  const HostBlock block(kBytes, 1);
  const gpu::CuDevicePtr address = allocate(kBytes);
  const gpu::CuStream stream = make_stream();
  const gpu::CuEvent event = make_event();
  pin(block, kBytes);
  control.set_plan("any:*=CUDA_ERROR_UNKNOWN");
  EXPECT_CUDA(unknown, cuda.cuMemHostUnregister(block.data()));
  EXPECT_CUDA(unknown, cuda.cuMemFree_v2(address));
  EXPECT_CUDA(unknown, cuda.cuEventDestroy_v2(event));
  EXPECT_CUDA(unknown, cuda.cuStreamDestroy_v2(stream));
  EXPECT_CUDA(unknown, cuda.cuCtxPopCurrent_v2(nullptr));
  EXPECT_CUDA(unknown, cuda.cuDevicePrimaryCtxRelease_v2(0));
  EXPECT_EQ(control.counter("live"), 0U);
  SetUp();
}

TEST_F(Faults, LetWaitsWaitFirst) {
  const HostBlock block(kBytes, 1);
  pin(block, kBytes);
  const gpu::CuDevicePtr address = allocate(kBytes);
  const gpu::CuStream stream = make_stream();
  const gpu::CuEvent event = make_event();
  control.set_plan("cuStreamSynchronize:1=999,cuEventSynchronize:1=999,delay_us=500");
  ASSERT_CUDA(success, cuda.cuMemcpyHtoDAsync_v2(address, block.data(), kBytes, stream));
  EXPECT_CUDA(unknown, cuda.cuStreamSynchronize(stream));
  EXPECT_EQ(read(address, kBytes), block.copy());
  ASSERT_CUDA(success, cuda.cuMemsetD8Async(address, 7, kBytes, stream));
  ASSERT_CUDA(success, cuda.cuEventRecord(event, stream));
  EXPECT_CUDA(unknown, cuda.cuEventSynchronize(event));
  EXPECT_EQ(read(address, kBytes), std::vector<std::byte>(kBytes, std::byte{7}));
  EXPECT_CUDA(success, cuda.cuEventDestroy_v2(event));
  EXPECT_CUDA(success, cuda.cuStreamDestroy_v2(stream));
  EXPECT_CUDA(success, cuda.cuMemFree_v2(address));
  unpin(block);
}

TEST_F(Faults, OfQueuedWorkSurfaceLaterAndStayUntilTheContextIsGone) {
  const HostBlock block(kBytes, 1);
  pin(block, kBytes);
  const gpu::CuDevicePtr first = allocate(kBytes);
  const gpu::CuDevicePtr second = allocate(kBytes);
  const gpu::CuStream stream = make_stream();
  const gpu::CuEvent event = make_event();
  control.set_plan("async:2=CUDA_ERROR_LAUNCH_FAILED");
  control.hold();
  EXPECT_CUDA(success, cuda.cuMemcpyHtoDAsync_v2(first, block.data(), kBytes, stream));
  EXPECT_CUDA(success, cuda.cuMemcpyHtoDAsync_v2(second, block.data(), kBytes, stream));
  EXPECT_CUDA(success, cuda.cuMemsetD8Async(first, 0, kBytes, stream));  // runs no more
  EXPECT_CUDA(success, cuda.cuEventRecord(event, stream));
  EXPECT_CUDA(not_ready, cuda.cuEventQuery(event));
  control.release();
  EXPECT_CUDA(launch_failed, cuda.cuEventSynchronize(event));
  EXPECT_CUDA(launch_failed, cuda.cuEventQuery(event));
  EXPECT_CUDA(launch_failed, cuda.cuStreamSynchronize(stream));
  EXPECT_CUDA(launch_failed, cuda.cuStreamQuery(stream));
  EXPECT_EQ(control.counter("host_to_device_copies"), 1U);
  EXPECT_EQ(control.counter("memsets"), 0U);
  EXPECT_TRUE(control.is_poison(second, kBytes));
  gpu::CuDevicePtr third = 0;
  EXPECT_CUDA(launch_failed, cuda.cuMemAlloc_v2(&third, 1));
  EXPECT_CUDA(launch_failed, cuda.cuMemFree_v2(first));
  EXPECT_CUDA(launch_failed, cuda.cuMemFree_v2(second));
  EXPECT_CUDA(launch_failed, cuda.cuEventDestroy_v2(event));
  EXPECT_CUDA(launch_failed, cuda.cuStreamDestroy_v2(stream));
  EXPECT_CUDA(launch_failed, cuda.cuMemHostUnregister(block.data()));
  EXPECT_EQ(control.counter("live"), 1U);  // the context
  EXPECT_CUDA(success, cuda.cuCtxPopCurrent_v2(nullptr));
  EXPECT_CUDA(success, cuda.cuDevicePrimaryCtxRelease_v2(0));
  ASSERT_CUDA(success, cuda.cuDevicePrimaryCtxRetain(&context, 0));
  ASSERT_CUDA(success, cuda.cuCtxPushCurrent_v2(context));
  EXPECT_CUDA(success, cuda.cuMemFree_v2(allocate(1)));
}

// A program that goes on after no error and gives back all it has: what tests of real code do with "any".
bool small_program(const gpu::CudaApi& cuda, const HostBlock& block) {
  constexpr auto ok = gpu::CuResult::success;
  gpu::CuDevicePtr address = 0;
  gpu::CuStream stream = nullptr;
  bool pinned = false;
  bool good = cuda.cuMemAlloc_v2(&address, kBytes) == ok && cuda.cuStreamCreate(&stream, 0) == ok;
  good = good && (pinned = cuda.cuMemHostRegister_v2(block.data(), kBytes, 0) == ok);
  good = good && cuda.cuMemcpyHtoDAsync_v2(address, block.data(), kBytes, stream) == ok;
  if (stream != nullptr) good = cuda.cuStreamSynchronize(stream) == ok && good;
  if (pinned) good = cuda.cuMemHostUnregister(block.data()) == ok && good;
  if (stream != nullptr) good = cuda.cuStreamDestroy_v2(stream) == ok && good;
  if (address != 0) good = cuda.cuMemFree_v2(address) == ok && good;
  return good;
}

TEST_F(Faults, CanHitEachCallInTurn) {
  const HostBlock block(kBytes, 1);
  int failures = 0;
  for (int n = 1;; ++n) {
    control.set_plan("any:" + std::to_string(n) + "=CUDA_ERROR_ILLEGAL_STATE");
    const std::uint64_t before = control.counter("faults_injected");
    const bool good = small_program(cuda, block);
    EXPECT_EQ(control.counter("live"), 1U) << "call " << n;
    EXPECT_EQ(control.counter("faults_injected") - before, good ? 0U : 1U) << "call " << n;
    if (good) break;
    ++failures;
  }
  EXPECT_EQ(failures, 8);
}

TEST_F(Faults, AreRefusedWhenTheyMakeNoSense) {
  for (const char* plan :
       {"cuMemAlok:1=2", "cuMemAlloc:0=2", "cuMemAlloc:1=CUDA_ERROR_NO_SUCH", "cuMemAlloc:x=2", "devices=9",
        "delay_us=5..4", "memory_mib=", "cufile_mode=fast", "cuMemAlloc", "cuMemAlloc:1"}) {
    EXPECT_DEATH(control.set_plan(plan), "is no setting and no fault") << plan;
  }
  EXPECT_DEATH(static_cast<void>(control.counter("allocatons")), "there is no counter 'allocatons'");
}

TEST_F(Faults, SettingsShapeTheMachine) {
  control.set_plan("devices=3 driver_version=11080 attribute:116=0");
  int value = 0;
  EXPECT_CUDA(success, cuda.cuDeviceGetCount(&value));
  EXPECT_EQ(value, 3);
  EXPECT_CUDA(success, cuda.cuDriverGetVersion(&value));
  EXPECT_EQ(value, 11080);
  EXPECT_CUDA(success, cuda.cuDeviceGetAttribute(&value, gpu::CuDeviceAttribute::gpu_direct_rdma_supported, 2));
  EXPECT_EQ(value, 0);
  EXPECT_CUDA(success, cuda.cuDeviceGetAttribute(&value, gpu::CuDeviceAttribute::unified_addressing, 2));
  EXPECT_EQ(value, 1);
  EXPECT_CUDA(invalid_device, cuda.cuDeviceGetAttribute(&value, gpu::CuDeviceAttribute::unified_addressing, 3));
  control.set_plan("devices=0");
  EXPECT_CUDA(no_device, cuda.cuInit(0));
}

TEST_F(Faults, ResetEndsEverythingAndTakesThePlanOfTheEnvironment) {
  const HostBlock block(kBytes, 1);
  pin(block, kBytes);
  const gpu::CuStream stream = make_stream();
  ASSERT_CUDA(success, cuda.cuMemsetD8Async(allocate(kBytes), 1, kBytes, stream));
  ::setenv("INFERCLUSTER_GPU_DOUBLE", "devices=5", 1);
  control.reset();
  ::unsetenv("INFERCLUSTER_GPU_DOUBLE");
  EXPECT_EQ(control.counter("live"), 0U);
  EXPECT_EQ(control.counter("contexts_destroyed_in_use"), 0U);
  int count = 0;
  EXPECT_CUDA(success, cuda.cuDeviceGetCount(&count));
  EXPECT_EQ(count, 5);
  EXPECT_CUDA(invalid_context, cuda.cuStreamSynchronize(stream));
  SetUp();
}

TEST_F(Faults, ErrorsHaveNames) {
  const char* text = nullptr;
  EXPECT_CUDA(success, cuda.cuGetErrorName(gpu::CuResult::launch_failed, &text));
  EXPECT_STREQ(text, "CUDA_ERROR_LAUNCH_FAILED");
  EXPECT_CUDA(success, cuda.cuGetErrorString(gpu::CuResult::launch_failed, &text));
  EXPECT_NE(text, nullptr);
  EXPECT_CUDA(invalid_value, cuda.cuGetErrorName(static_cast<gpu::CuResult>(12345), &text));
  EXPECT_EQ(text, nullptr);
}

}  // namespace
}  // namespace infercluster::gpu_double
