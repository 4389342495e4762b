// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "gpu/cuda_api.h"
#include "gpu/cufile_api.h"
#include "testing/gpu_double/control.h"

namespace infercluster::gpu_double {

inline void* open_library(const char* variable) {
  void* library = ::dlopen(std::getenv(variable), RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(library, nullptr) << variable << ": " << ::dlerror();
  return library;
}

inline gpu::CudaApi load_cuda() {
  void* library = open_library("INFERCLUSTER_LIBCUDA");
  gpu::CudaApi api;
#define IC_LOAD(symbol, ...)                                                      \
  api.symbol = reinterpret_cast<decltype(api.symbol)>(::dlsym(library, #symbol)); \
  EXPECT_NE(api.symbol, nullptr) << #symbol;
  IC_CUDA_FUNCTIONS(IC_LOAD)
#undef IC_LOAD
  return api;
}

inline gpu::CuFileApi load_cufile() {
  void* library = open_library("INFERCLUSTER_LIBCUFILE");
  gpu::CuFileApi api;
#define IC_LOAD(symbol, ...)                                                      \
  api.symbol = reinterpret_cast<decltype(api.symbol)>(::dlsym(library, #symbol)); \
  EXPECT_NE(api.symbol, nullptr) << #symbol;
  IC_CUFILE_FUNCTIONS(IC_LOAD)
  IC_CUFILE_OPTIONAL_FUNCTIONS(IC_LOAD)
#undef IC_LOAD
  return api;
}

// Page-aligned memory whose bytes follow from a seed; registered with the driver when a test does so.
class HostBlock {
 public:
  HostBlock(std::size_t bytes, unsigned seed) : bytes_(bytes) {
    void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(mapped, MAP_FAILED);
    data_ = static_cast<std::byte*>(mapped);
    fill(seed);
  }
  HostBlock(const HostBlock&) = delete;
  HostBlock& operator=(const HostBlock&) = delete;
  ~HostBlock() { ::munmap(data_, bytes_); }

  void fill(unsigned seed) {
    for (std::size_t i = 0; i < bytes_; ++i) data_[i] = value(seed, i);
  }
  // As fill(), past ThreadSanitizer: for tests that show what comes of a race.
  __attribute__((no_sanitize("thread"))) void fill_too_early(unsigned seed) {
    volatile std::byte* data = data_;
    for (std::size_t i = 0; i < bytes_; ++i) data[i] = value(seed, i);
  }
  static std::byte value(unsigned seed, std::size_t i) {
    return static_cast<std::byte>((i * 31 + i / 251 + seed) & 0x7FU);
  }
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::vector<std::byte> copy() const { return {data_, data_ + bytes_}; }

 private:
  std::size_t bytes_;
  std::byte* data_ = nullptr;
};

#define EXPECT_CUDA(expected, expression) \
  EXPECT_EQ(static_cast<int>(expression), static_cast<int>(gpu::CuResult::expected))
#define ASSERT_CUDA(expected, expression) \
  ASSERT_EQ(static_cast<int>(expression), static_cast<int>(gpu::CuResult::expected))

// Device 0's context is current; nothing may be left at the end but what a test says.
class DoubleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    control.reset();
    ASSERT_CUDA(success, cuda.cuInit(0));
    ASSERT_CUDA(success, cuda.cuDevicePrimaryCtxRetain(&context, 0));
    ASSERT_CUDA(success, cuda.cuCtxPushCurrent_v2(context));
  }
  void TearDown() override {
    control.set_plan("");
    cuda.cuCtxPopCurrent_v2(nullptr);
    cuda.cuDevicePrimaryCtxRelease_v2(0);
    EXPECT_EQ(control.counter("live"), live_expected);
    EXPECT_EQ(control.counter("violations"), violations_expected);
    EXPECT_EQ(control.counter("contexts_destroyed_in_use"), 0U);
    control.reset();
  }

  gpu::CuDevicePtr allocate(std::size_t bytes) const {
    gpu::CuDevicePtr address = 0;
    EXPECT_CUDA(success, cuda.cuMemAlloc_v2(&address, bytes));
    return address;
  }
  gpu::CuStream make_stream() const {
    gpu::CuStream stream = nullptr;
    EXPECT_CUDA(success, cuda.cuStreamCreate(&stream, gpu::kCuStreamNonBlocking));
    return stream;
  }
  gpu::CuEvent make_event() const {
    gpu::CuEvent event = nullptr;
    EXPECT_CUDA(success, cuda.cuEventCreate(&event, gpu::kCuEventDisableTiming));
    return event;
  }
  void pin(const HostBlock& block, std::size_t bytes) const {
    ASSERT_CUDA(success, cuda.cuMemHostRegister_v2(block.data(), bytes, gpu::kCuHostRegisterPortable));
  }
  void unpin(const HostBlock& block) const { EXPECT_CUDA(success, cuda.cuMemHostUnregister(block.data())); }
  [[nodiscard]] std::vector<std::byte> read(gpu::CuDevicePtr address, std::size_t bytes) const {
    std::vector<std::byte> data(bytes);
    EXPECT_TRUE(control.read(address, data));
    return data;
  }

  Control control;
  gpu::CudaApi cuda = load_cuda();
  gpu::CuContext context = nullptr;
  std::uint64_t live_expected = 0;
  std::uint64_t violations_expected = 0;
};

}  // namespace infercluster::gpu_double
