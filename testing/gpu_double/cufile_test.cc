// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include "testing/gpu_double/gpu_double_test_helpers.h"
#include "testing/temp_dir.h"

namespace infercluster::gpu_double {
namespace {

using gpu::CuFileCode;

constexpr std::size_t kFileBytes = (std::size_t{3} << 20) + 777;
constexpr std::size_t kDeviceBytes = std::size_t{4} << 20;

#define EXPECT_CODE(expected, expression) \
  EXPECT_EQ(static_cast<int>((expression).code), static_cast<int>(CuFileCode::expected))
#define ASSERT_CODE(expected, expression) \
  ASSERT_EQ(static_cast<int>((expression).code), static_cast<int>(CuFileCode::expected))

class CuFiles : public DoubleTest {
 protected:
  void SetUp() override {
    DoubleTest::SetUp();
    for (std::size_t i = 0; i < kFileBytes; ++i) content.push_back(static_cast<char>(HostBlock::value(5, i)));
    const std::string path = folder.write("file", content);
    fd = ::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0) fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);  // a file system without direct I/O
    ASSERT_GE(fd, 0);
    direct = (::fcntl(fd, F_GETFL) & O_DIRECT) != 0;
    address = allocate(kDeviceBytes);
    ASSERT_CODE(success, cufile.cuFileDriverOpen());
    handle = add(fd);
  }
  void TearDown() override {
    cufile.cuFileHandleDeregister(handle);
    EXPECT_CODE(success, cufile.cuFileDriverClose_v2());
    EXPECT_CUDA(success, cuda.cuMemFree_v2(address));
    ::close(fd);
    DoubleTest::TearDown();
  }
  gpu::CuFileHandle add(int file) const {
    gpu::CuFileHandle made = nullptr;
    EXPECT_CODE(success, try_add(file, made));
    return made;
  }
  gpu::CuFileError try_add(int file, gpu::CuFileHandle& made) const {
    gpu::CuFileDescriptor descriptor{};
    descriptor.type = gpu::kCuFileHandleTypeFd;
    descriptor.handle.fd = file;
    return cufile.cuFileHandleRegister(&made, &descriptor);
  }
  static void* pointer(gpu::CuDevicePtr at) { return std::bit_cast<void*>(at); }
  ssize_t read_file(std::size_t bytes, std::size_t file_offset, std::size_t device_offset) const {
    return cufile.cuFileRead(handle, pointer(address), bytes, static_cast<off_t>(file_offset),
                             static_cast<off_t>(device_offset));
  }
  [[nodiscard]] std::vector<std::byte> expected(std::size_t file_offset, std::size_t bytes) const {
    std::vector<std::byte> part(bytes);
    std::memcpy(part.data(), content.data() + file_offset, bytes);
    return part;
  }

  testing::TempDir folder;
  std::string content;
  gpu::CuFileApi cufile = load_cufile();
  gpu::CuFileHandle handle = nullptr;
  gpu::CuDevicePtr address = 0;
  int fd = -1;
  bool direct = false;
};

TEST_F(CuFiles, ReadIntoDeviceMemory) {
  ASSERT_CODE(success, cufile.cuFileBufRegister(pointer(address), kDeviceBytes, 0));
  EXPECT_EQ(read_file(1 << 20, 4096, 8192), 1 << 20);
  EXPECT_EQ(read(address + 8192, 1 << 20), expected(4096, 1 << 20));
  EXPECT_TRUE(control.is_poison(address, 8192));
  EXPECT_TRUE(control.is_poison(address + 8192 + (1 << 20), 8192));
  EXPECT_EQ(control.counter("cufile_bytes"), 1U << 20);
  EXPECT_EQ(control.counter("cufile_unaligned"), 0U);
  EXPECT_EQ(control.counter("cufile_unregistered"), 0U);
  EXPECT_EQ(control.counter("cufile_compat_reads"), direct ? 0U : 1U);
  EXPECT_EQ(control.counter("host_to_device_bytes"), 0U);
  EXPECT_CODE(success, cufile.cuFileBufDeregister(pointer(address)));
}

TEST_F(CuFiles, UnalignedReadsWorkAndAreCounted) {
  EXPECT_EQ(read_file(1'500'001, 4097, 13), 1'500'001);
  EXPECT_EQ(read(address + 13, 1'500'001), expected(4097, 1'500'001));
  EXPECT_EQ(control.counter("cufile_unaligned"), 1U);
  EXPECT_EQ(control.counter("cufile_unregistered"), 1U);
}

TEST_F(CuFiles, ReadsEndWithTheFile) {
  EXPECT_EQ(read_file(kDeviceBytes, 0, 0), static_cast<ssize_t>(kFileBytes));
  EXPECT_EQ(read(address, kFileBytes), expected(0, kFileBytes));
  EXPECT_TRUE(control.is_poison(address + kFileBytes, kDeviceBytes - kFileBytes));
  EXPECT_EQ(read_file(4096, kFileBytes - 77, 0), 77);
  EXPECT_EQ(read_file(4096, kFileBytes, 0), 0);
  EXPECT_EQ(read_file(4096, kFileBytes + 4096, 0), 0);
}

TEST_F(CuFiles, OutsideOfDeviceMemoryAreRefused) {
  EXPECT_EQ(read_file(kDeviceBytes, 0, 1), -5014);
  std::byte on_host{};
  EXPECT_EQ(cufile.cuFileRead(handle, &on_host, 1, 0, 0), -5012);
  EXPECT_EQ(cufile.cuFileRead(pointer(12345), pointer(address), 1, 0, 0), -5027);
  EXPECT_EQ(cufile.cuFileRead(handle, pointer(address), 1, -1, 0), -5022);
  gpu::CuContext other = nullptr;
  ASSERT_CUDA(success, cuda.cuDevicePrimaryCtxRetain(&other, 1));
  ASSERT_CUDA(success, cuda.cuCtxPushCurrent_v2(other));
  EXPECT_EQ(read_file(1, 0, 0), -5015);
  ASSERT_CUDA(success, cuda.cuCtxPopCurrent_v2(nullptr));
  ASSERT_CUDA(success, cuda.cuDevicePrimaryCtxRelease_v2(1));
}

TEST_F(CuFiles, FailAsPlanned) {
  control.set_plan("cuFileRead:1=short cuFileRead:2=short:100 cuFileRead:3=EIO cuFileRead:4=5030 cuFileRead:5=700");
  EXPECT_EQ(read_file(100'000, 0, 0), 49152);
  EXPECT_EQ(read_file(100'000, 0, 0), 100);
  EXPECT_EQ(read_file(100'000, 0, 0), -1);
  EXPECT_EQ(errno, EIO);
  EXPECT_EQ(read_file(100'000, 0, 0), -5030);
  EXPECT_EQ(read_file(100'000, 0, 0), -5011);
  EXPECT_EQ(read_file(100'000, 0, 0), 100'000);
  control.set_plan("cuFileBufRegister:1=5016,cuFileHandleRegister:1=CUDA_ERROR_UNKNOWN");
  EXPECT_CODE(invalid_mapping_size, cufile.cuFileBufRegister(pointer(address), 65536, 0));
  gpu::CuFileHandle made = nullptr;
  const gpu::CuFileError error = try_add(fd, made);
  EXPECT_EQ(error.code, CuFileCode::cuda_driver_error);
  EXPECT_EQ(error.cuda, gpu::CuResult::unknown);
}

TEST_F(CuFiles, BuffersFollowTheRulesOfMappings) {
  EXPECT_CODE(invalid_mapping_size, cufile.cuFileBufRegister(pointer(address), 5000, 0));
  EXPECT_CODE(invalid_mapping_size, cufile.cuFileBufRegister(pointer(address), 65536 + 4096, 0));
  EXPECT_CODE(cuda_pointer_range_error, cufile.cuFileBufRegister(pointer(address), 2 * kDeviceBytes, 0));
  EXPECT_CODE(success, cufile.cuFileBufRegister(pointer(address), 8192, 0));
  EXPECT_CODE(memory_already_registered, cufile.cuFileBufRegister(pointer(address + 4096), 8192, 0));
  EXPECT_CODE(success, cufile.cuFileBufRegister(pointer(address + 8192), 131072, 0));
  EXPECT_CODE(memory_already_registered, cufile.cuFileBufRegister(pointer(address), 65536, 0));
  EXPECT_EQ(control.counter("cufile_buffers"), 2U);
  EXPECT_CODE(success, cufile.cuFileBufDeregister(pointer(address)));
  EXPECT_CODE(success, cufile.cuFileBufDeregister(pointer(address + 8192)));
  EXPECT_CODE(memory_not_registered, cufile.cuFileBufDeregister(pointer(address)));
}

TEST_F(CuFiles, FilesAreRegularAndRegisteredOnce) {
  gpu::CuFileHandle made = nullptr;
  EXPECT_CODE(handle_already_registered, try_add(fd, made));
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  EXPECT_CODE(invalid_file_type, try_add(ends[0], made));
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_CODE(invalid_value, try_add(ends[0], made));
}

TEST_F(CuFiles, CompatibilityModeIsCounted) {
  control.set_plan("cufile_mode=compat");
  EXPECT_EQ(read_file(8192, 0, 0), 8192);
  EXPECT_EQ(control.counter("cufile_compat_reads"), 1U);
  control.set_plan("cufile_mode=p2p");
  EXPECT_EQ(read_file(8192, 0, 0), 8192);
  EXPECT_EQ(control.counter("cufile_compat_reads"), direct ? 1U : 2U);
}

TEST_F(CuFiles, PropertiesTellTheMode) {
  gpu::CuFileProperties properties{};
  unsigned flags = 0;
  ASSERT_CODE(success, cufile.cuFileDriverGetProperties(&properties));
  EXPECT_EQ(properties.nvfs.major_version, 2U);
  control.set_plan("cufile_mode=p2p");
  ASSERT_CODE(success, cufile.cuFileDriverGetProperties(&properties));
  EXPECT_EQ(properties.nvfs.major_version, 0U);
  EXPECT_NE(properties.features & 1U << gpu::kCuFileFeatureP2p, 0U);
  ASSERT_CODE(success, cufile.cuFileDriverGetP2PFlags(gpu::kCuFileStatusNvme, &flags));
  EXPECT_EQ(flags, 1U << gpu::kCuFileP2pPciDma);
  control.set_plan("cufile_mode=compat");
  ASSERT_CODE(success, cufile.cuFileDriverGetProperties(&properties));
  EXPECT_EQ(properties.nvfs.driver_status, 0U);
  EXPECT_EQ(properties.features, 0U);
  EXPECT_NE(properties.nvfs.driver_control & 1U << gpu::kCuFileControlAllowCompat, 0U);
}

TEST_F(CuFiles, DriverDoesNotOpenWhereItCannotWork) {
  control.set_plan("cufile_mode=none");
  EXPECT_CODE(driver_not_initialized, cufile.cuFileDriverOpen());
  control.set_plan("cufile_mode=compat,cufile_allow_compat=0");
  EXPECT_CODE(driver_not_initialized, cufile.cuFileDriverOpen());
  control.set_plan("cufile_mode=compat");
  EXPECT_CODE(success, cufile.cuFileDriverOpen());
  EXPECT_EQ(control.counter("cufile_driver_opens"), 2U);
  EXPECT_CODE(success, cufile.cuFileDriverClose());
}

TEST_F(CuFiles, FreeingARegisteredBufferIsAViolation) {
  violations_expected = 1;
  const gpu::CuDevicePtr other = allocate(kDeviceBytes);
  ASSERT_CODE(success, cufile.cuFileBufRegister(pointer(other + 65536), 65536, 0));
  EXPECT_CUDA(success, cuda.cuMemFree_v2(other));
  EXPECT_CODE(success, cufile.cuFileBufDeregister(pointer(other + 65536)));
}

TEST_F(CuFiles, ReadingOverAQueuedCopyIsAViolation) {
  violations_expected = 1;
  control.hold();
  ASSERT_CUDA(success, cuda.cuMemsetD8Async(address, 0, 4096, nullptr));
  std::thread opener([&] {
    while (control.counter("violations") == 0) std::this_thread::yield();
    control.release();
  });
  EXPECT_EQ(read_file(4096, 0, 0), 4096);
  opener.join();
  ASSERT_CUDA(success, cuda.cuStreamSynchronize(nullptr));
}

TEST(CuFileDriver, MakesItselfAContextWhereNoneIsCurrent) {
  const Control control;
  control.reset();
  const gpu::CudaApi cuda = load_cuda();
  const gpu::CuFileApi cufile = load_cufile();
  ASSERT_CUDA(success, cuda.cuInit(0));
  ASSERT_CODE(success, cufile.cuFileDriverOpen());
  EXPECT_EQ(control.counter("contexts_created:0"), 1U);
  ASSERT_CODE(success, cufile.cuFileDriverClose_v2());
  EXPECT_EQ(control.counter("contexts_retained:0"), 0U);
  EXPECT_CODE(driver_not_initialized, cufile.cuFileDriverClose_v2());
  gpu::CuContext context = nullptr;
  ASSERT_CUDA(success, cuda.cuDevicePrimaryCtxRetain(&context, 1));
  ASSERT_CUDA(success, cuda.cuCtxPushCurrent_v2(context));
  ASSERT_CODE(success, cufile.cuFileDriverOpen());
  EXPECT_EQ(control.counter("contexts_created:0"), 1U);  // none but the one above
  ASSERT_CODE(success, cufile.cuFileDriverClose_v2());
  ASSERT_CUDA(success, cuda.cuCtxPopCurrent_v2(nullptr));
  ASSERT_CUDA(success, cuda.cuDevicePrimaryCtxRelease_v2(1));
  EXPECT_EQ(control.counter("live"), 0U);
}

}  // namespace
}  // namespace infercluster::gpu_double
