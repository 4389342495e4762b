// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <thread>

#include "testing/gpu_double/gpu_double_test_helpers.h"

namespace infercluster::gpu_double {
namespace {

constexpr std::size_t kBytes = 100'000;

using Memory = DoubleTest;

TEST_F(Memory, HostCannotTouchIt) {
  const gpu::CuDevicePtr address = allocate(kBytes);
  auto* pointer = std::bit_cast<volatile char*>(address);
  EXPECT_DEATH(static_cast<void>(*pointer), "");
  EXPECT_DEATH(*pointer = 1, "");
  EXPECT_CUDA(success, cuda.cuMemFree_v2(address));
}

TEST_F(Memory, HoldsPoisonUntilACopyHasRun) {
  const HostBlock source(kBytes, 1);
  pin(source, kBytes);
  const gpu::CuDevicePtr address = allocate(kBytes);
  EXPECT_TRUE(control.is_poison(address, kBytes));
  const gpu::CuStream stream = make_stream();
  ASSERT_CUDA(success, cuda.cuMemcpyHtoDAsync_v2(address, source.data(), kBytes, stream));
  ASSERT_CUDA(success, cuda.cuStreamSynchronize(stream));
  EXPECT_EQ(read(address, kBytes), source.copy());
  control.hold();
  ASSERT_CUDA(success, cuda.cuMemcpyHtoDAsync_v2(address + 256, source.data(), 4096, stream));
  EXPECT_TRUE(control.is_poison(address + 256, 4096));
  EXPECT_FALSE(control.is_poison(address, 256));
  control.release();
  ASSERT_CUDA(success, cuda.cuStreamSynchronize(stream));
  EXPECT_FALSE(control.is_poison(address + 256, 4096));
  EXPECT_CUDA(success, cuda.cuStreamDestroy_v2(stream));
  EXPECT_CUDA(success, cuda.cuMemFree_v2(address));
  unpin(source);
}

TEST_F(Memory, PoisonsOnlyWhenTheCopyBeginsWhereEarlierWorkNeedsTheBytes) {
  const HostBlock first(kBytes, 1);
  const HostBlock second(kBytes, 2);
  pin(first, kBytes);
  pin(second, kBytes);
  const gpu::CuDevicePtr staging = allocate(kBytes);
  const gpu::CuDevicePtr target = allocate(kBytes);
  const gpu::CuStream stream = make_stream();
  control.hold();
  ASSERT_CUDA(success, cuda.cuMemcpyHtoDAsync_v2(staging, first.data(), kBytes, stream));
  ASSERT_CUDA(success, cuda.cuMemcpyDtoDAsync_v2(target, staging, kBytes, stream));
  ASSERT_CUDA(success, cuda.cuMemcpyHtoDAsync_v2(staging, second.data(), kBytes, stream));
  control.release();
  ASSERT_CUDA(success, cuda.cuStreamSynchronize(stream));
  EXPECT_EQ(read(target, kBytes), first.copy());
  EXPECT_EQ(read(staging, kBytes), second.copy());
  EXPECT_EQ(control.counter("device_to_device_bytes"), kBytes);
  EXPECT_EQ(control.counter("host_to_device_bytes"), 2 * kBytes);
  EXPECT_CUDA(success, cuda.cuStreamDestroy_v2(stream));
  EXPECT_CUDA(success, cuda.cuMemFree_v2(staging));
  EXPECT_CUDA(success, cuda.cuMemFree_v2(target));
  unpin(first);
  unpin(second);
}

TEST_F(Memory, PinnedSourceIsReadOnlyWhenTheCopyRuns) {
  HostBlock source(kBytes, 1);
  pin(source, kBytes);
  const gpu::CuDevicePtr address = allocate(kBytes);
  const gpu::CuStream stream = make_stream();
  control.hold();
  ASSERT_CUDA(success, cuda.cuMemcpyHtoDAsync_v2(address, source.data(), kBytes, stream));
  source.fill_too_early(9);  // its new bytes arrive
  control.release();
  ASSERT_CUDA(success, cuda.cuStreamSynchronize(stream));
  EXPECT_EQ(read(address, kBytes), source.copy());
  EXPECT_EQ(control.counter("pageable_copies"), 0U);
  EXPECT_CUDA(success, cuda.cuStreamDestroy_v2(stream));
  EXPECT_CUDA(success, cuda.cuMemFree_v2(address));
  unpin(source);
}

TEST_F(Memory, UnpinnedSourceIsReadBeforeReturnAndCounted) {
  HostBlock source(kBytes, 1);
  const std::vector<std::byte> before = source.copy();
  const gpu::CuDevicePtr address = allocate(kBytes);
  const gpu::CuStream stream = make_stream();
  control.hold();
  ASSERT_CUDA(success, cuda.cuMemcpyHtoDAsync_v2(address, source.data(), kBytes, stream));
  source.fill(9);
  control.release();
  ASSERT_CUDA(success, cuda.cuStreamSynchronize(stream));
  EXPECT_EQ(read(address, kBytes), before);
  std::vector<std::byte> back(kBytes);
  ASSERT_CUDA(success, cuda.cuMemcpyDtoHAsync_v2(back.data(), address, kBytes, stream));
  EXPECT_EQ(back, before);  // without waiting: the call has
  EXPECT_EQ(control.counter("pageable_copies"), 2U);
  EXPECT_CUDA(success, cuda.cuStreamDestroy_v2(stream));
  EXPECT_CUDA(success, cuda.cuMemFree_v2(address));
}

TEST_F(Memory, CopiesOutsideOfAnAllocationAreRefused) {
  HostBlock source(kBytes, 1);
  const gpu::CuDevicePtr address = allocate(4096);
  const gpu::CuDevicePtr next = allocate(4096);
  EXPECT_CUDA(invalid_value, cuda.cuMemcpyHtoDAsync_v2(address, source.data(), 4097, nullptr));
  EXPECT_CUDA(invalid_value, cuda.cuMemcpyHtoDAsync_v2(address + 4090, source.data(), 7, nullptr));
  EXPECT_CUDA(invalid_value, cuda.cuMemcpyHtoDAsync_v2(address - 1, source.data(), 2, nullptr));
  EXPECT_CUDA(invalid_value, cuda.cuMemcpyDtoHAsync_v2(source.data(), address + 4096, 1, nullptr));
  EXPECT_CUDA(invalid_value, cuda.cuMemcpyDtoDAsync_v2(next, address, 4097, nullptr));
  EXPECT_CUDA(invalid_value, cuda.cuMemsetD8Async(address, 0, 4097, nullptr));
  EXPECT_CUDA(success, cuda.cuMemFree_v2(address));
  EXPECT_CUDA(invalid_value, cuda.cuMemcpyHtoDAsync_v2(address, source.data(), 1, nullptr));
  EXPECT_CUDA(invalid_value, cuda.cuMemFree_v2(address));
  EXPECT_CUDA(invalid_value, cuda.cuMemFree_v2(next + 256));
  EXPECT_CUDA(success, cuda.cuMemFree_v2(next));
}

TEST_F(Memory, FreeWaitsForCopiesInFlight) {
  const HostBlock source(kBytes, 1);
  pin(source, kBytes);
  const gpu::CuDevicePtr address = allocate(kBytes);
  const gpu::CuStream stream = make_stream();
  control.hold();
  ASSERT_CUDA(success, cuda.cuMemcpyHtoDAsync_v2(address, source.data(), kBytes, stream));
  std::thread opener([&] {
    while (control.counter("frees_in_flight") == 0) std::this_thread::yield();
    control.release();
  });
  EXPECT_CUDA(success, cuda.cuMemFree_v2(address));
  EXPECT_EQ(control.counter("host_to_device_copies"), 1U);
  opener.join();
  EXPECT_CUDA(success, cuda.cuStreamDestroy_v2(stream));
  unpin(source);
}

TEST_F(Memory, IsAlignedTo256BytesAndNoMore) {
  for (int i = 0; i < 8; ++i) EXPECT_EQ(allocate(1000) % 512, 256U);
  EXPECT_EQ(allocate(std::size_t{3} << 20) % (std::size_t{2} << 20), 0U);
  EXPECT_EQ(control.counter("allocations"), 9U);
  EXPECT_EQ(control.counter("allocated_bytes"), 8000U + (std::size_t{3} << 20));
  control.reset();
  EXPECT_EQ(control.counter("live"), 0U);
  SetUp();
}

TEST_F(Memory, HasALimitPerDevice) {
  control.set_plan("memory_mib=4");
  std::size_t free = 0;
  std::size_t total = 0;
  const gpu::CuDevicePtr address = allocate(std::size_t{3} << 20);
  EXPECT_CUDA(success, cuda.cuMemGetInfo_v2(&free, &total));
  EXPECT_EQ(total, std::size_t{4} << 20);
  EXPECT_EQ(free, std::size_t{1} << 20);
  gpu::CuDevicePtr other = 0;
  EXPECT_CUDA(out_of_memory, cuda.cuMemAlloc_v2(&other, free + 1));
  EXPECT_CUDA(success, cuda.cuMemFree_v2(address));
  EXPECT_CUDA(success, cuda.cuMemAlloc_v2(&other, total));
  EXPECT_CUDA(success, cuda.cuMemFree_v2(other));
}

TEST_F(Memory, FreedAddressesAreNotGivenOutAgainSoon) {
  const gpu::CuDevicePtr address = allocate(4096);
  EXPECT_CUDA(success, cuda.cuMemFree_v2(address));
  const gpu::CuDevicePtr next = allocate(4096);
  EXPECT_NE(next, address);
  EXPECT_CUDA(success, cuda.cuMemFree_v2(next));
}

TEST_F(Memory, RegistrationsDoNotOverlap) {
  const HostBlock block(4 * 4096, 1);
  std::byte* const data = block.data();
  EXPECT_CUDA(success, cuda.cuMemHostRegister_v2(data, 2 * 4096, 0));
  EXPECT_CUDA(host_memory_already_registered, cuda.cuMemHostRegister_v2(data + 4096, 2 * 4096, 0));
  EXPECT_CUDA(success, cuda.cuMemHostRegister_v2(data + 2 * 4096, 4096, 0));
  EXPECT_CUDA(host_memory_not_registered, cuda.cuMemHostUnregister(data + 4096));
  EXPECT_CUDA(invalid_value, cuda.cuMemHostRegister_v2(data + 3 * 4096, 4096, 16));  // no such flag
  EXPECT_CUDA(invalid_value, cuda.cuMemHostRegister_v2(std::bit_cast<void*>(std::uintptr_t{4096}), 4096, 0));
  EXPECT_EQ(control.counter("registered_bytes"), 3U * 4096);
  EXPECT_CUDA(success, cuda.cuMemHostUnregister(data));
  EXPECT_CUDA(success, cuda.cuMemHostUnregister(data + 2 * 4096));
  EXPECT_CUDA(host_memory_not_registered, cuda.cuMemHostUnregister(data));
}

TEST_F(Memory, UnregisteringUnderACopyIsAViolation) {
  violations_expected = 1;
  const HostBlock source(kBytes, 1);
  pin(source, kBytes);
  const gpu::CuDevicePtr address = allocate(kBytes);
  control.hold();
  ASSERT_CUDA(success, cuda.cuMemcpyHtoDAsync_v2(address, source.data(), kBytes, nullptr));
  std::thread opener([&] {
    while (control.counter("violations") == 0) std::this_thread::yield();
    control.release();
  });
  unpin(source);
  opener.join();
  EXPECT_CUDA(success, cuda.cuMemFree_v2(address));
}

TEST_F(Memory, TwoDimensionalCopiesTouchTheRowsOnly) {
  constexpr std::size_t kWidth = 300;
  constexpr std::size_t kRows = 5;
  constexpr std::size_t kPitch = 512;
  const HostBlock source(kWidth * kRows, 3);
  pin(source, kWidth * kRows);
  const gpu::CuDevicePtr address = allocate(kPitch * kRows);
  gpu::CuMemcpy2D copy{};
  copy.source_type = gpu::CuMemoryType::host;
  copy.source_host = source.data();
  copy.source_pitch = kWidth;
  copy.target_type = gpu::CuMemoryType::device;
  copy.target_device = address;
  copy.target_pitch = kPitch;
  copy.target_x_bytes = 8;
  copy.width_bytes = kWidth;
  copy.height = kRows;
  ASSERT_CUDA(success, cuda.cuMemcpy2DAsync_v2(&copy, nullptr));
  ASSERT_CUDA(success, cuda.cuStreamSynchronize(nullptr));
  const std::vector<std::byte> all = source.copy();
  for (std::size_t row = 0; row < kRows; ++row) {
    EXPECT_TRUE(control.is_poison(address + row * kPitch, 8));
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(row * kWidth);
    EXPECT_EQ(read(address + row * kPitch + 8, kWidth), std::vector<std::byte>(first, first + kWidth));
    EXPECT_TRUE(control.is_poison(address + row * kPitch + 8 + kWidth, kPitch - 8 - kWidth));
  }
  EXPECT_EQ(control.counter("host_to_device_bytes"), kWidth * kRows);
  copy.height = kRows + 1;
  EXPECT_CUDA(invalid_value, cuda.cuMemcpy2DAsync_v2(&copy, nullptr));
  EXPECT_CUDA(success, cuda.cuMemFree_v2(address));
  unpin(source);
}

TEST_F(Memory, PointersKnowWhereTheyBelong) {
  const HostBlock block(4096, 1);
  pin(block, 4096);
  const gpu::CuDevicePtr address = allocate(4096);
  gpu::CuMemoryType type{};
  int ordinal = -1;
  EXPECT_CUDA(success, cuda.cuPointerGetAttribute(&type, gpu::CuPointerAttribute::memory_type, address + 4095));
  EXPECT_EQ(type, gpu::CuMemoryType::device);
  EXPECT_CUDA(success, cuda.cuPointerGetAttribute(&ordinal, gpu::CuPointerAttribute::device_ordinal, address));
  EXPECT_EQ(ordinal, 0);
  gpu::CuDevicePtr start = 0;
  EXPECT_CUDA(success, cuda.cuPointerGetAttribute(&start, gpu::CuPointerAttribute::range_start, address + 7));
  EXPECT_EQ(start, address);
  const auto host = std::bit_cast<gpu::CuDevicePtr>(block.data());
  EXPECT_CUDA(success, cuda.cuPointerGetAttribute(&type, gpu::CuPointerAttribute::memory_type, host));
  EXPECT_EQ(type, gpu::CuMemoryType::host);
  unpin(block);
  EXPECT_CUDA(invalid_value, cuda.cuPointerGetAttribute(&type, gpu::CuPointerAttribute::memory_type, host));
  EXPECT_CUDA(success, cuda.cuMemFree_v2(address));
}

}  // namespace
}  // namespace infercluster::gpu_double
