// SPDX-License-Identifier: Apache-2.0
#include "gpu/cufile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>

#include <string>

#include "base/units.h"
#include "gpu/gpu_test_helpers.h"
#include "testing/child.h"
#include "testing/temp_dir.h"

namespace infercluster::gpu {
namespace {

using ::testing::HasSubstr;

class CuFileOf : public GpuTest {
 protected:
  static constexpr std::uint64_t kFileBytes = 1 << 20;

  void SetUp() override {
    GpuTest::SetUp();
    std::string content(kFileBytes, '\0');
    for (std::uint64_t place = 0; place < kFileBytes; ++place) content[place] = static_cast<char>(pattern(place));
    path_ = directory_.write("file", content);
    fd_ = Fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_TRUE(fd_.valid());
  }
  [[nodiscard]] bool holds(const memory::Span& where, std::uint64_t place) const {
    const auto bytes = bytes_of(where);
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      if (bytes[at] != pattern(place + at)) return false;
    }
    return true;
  }
  static std::shared_ptr<CuFile> open_cufile(const std::shared_ptr<Device>& device) {
    auto opened = CuFile::open(device);
    EXPECT_TRUE(opened.ok()) << opened.error().to_string();
    return std::move(opened).value();
  }

  testing::TempDir directory_;
  std::string path_;
  Fd fd_;
};

TEST_F(CuFileOf, TheModeIsAskedFor) {
  const auto device = open();
  const struct {
    const char* plan;
    GdsMode mode;
    bool direct;
    const char* text;
  } cases[] = {
      {"cufile_mode=nvidia_fs", GdsMode::nvidia_fs, true, "nvidia_fs (nvidia-fs 2.28)"},
      {"cufile_mode=p2p", GdsMode::p2p, true, "p2p"},
      {"cufile_mode=compat", GdsMode::compat, false, "compat, compatibility mode allowed"},
      {"cufile_mode=nvidia_fs cufile_allow_compat=0", GdsMode::nvidia_fs, true, "compatibility mode refused"},
  };
  for (const auto& expected : cases) {
    control_.set_plan(expected.plan);
    const auto cufile = open_cufile(device);
    EXPECT_EQ(cufile->mode(), expected.mode) << expected.plan;
    EXPECT_EQ(is_direct(cufile->mode()), expected.direct) << expected.plan;
    EXPECT_THAT(cufile->text(), HasSubstr(expected.text));
    EXPECT_THAT(cufile->text(), HasSubstr("cuFile 1.14"));
    EXPECT_EQ(cufile->version(), 1140);
  }
}

TEST_F(CuFileOf, OlderLibrariesAreAskedByTheirBits) {
  const auto device = open();
  control_.set_plan("cufile_mode=p2p cuFileDriverGetP2PFlags:*=5030 cuFileGetParameterBool:*=5022");
  EXPECT_EQ(open_cufile(device)->mode(), GdsMode::p2p);
  control_.set_plan("cufile_mode=nvidia_fs cuFileDriverGetP2PFlags:*=5030 cuFileGetParameterBool:*=5022");
  EXPECT_EQ(open_cufile(device)->mode(), GdsMode::nvidia_fs);
  control_.set_plan("cufile_mode=compat cuFileDriverGetP2PFlags:*=5030 cuFileGetParameterBool:*=5022");
  const auto cufile = open_cufile(device);
  EXPECT_EQ(cufile->mode(), GdsMode::compat);
}

TEST_F(CuFileOf, OneDriverForAllAndClosedByTheLast) {
  const auto device = open(0);
  EXPECT_EQ(control_.counter("cufile_driver_opens"), 0U) << "not before it is asked for";
  auto first = open_cufile(device);
  const auto other_device = open(1);
  auto second = open_cufile(other_device);
  EXPECT_EQ(control_.counter("cufile_driver_opens"), 1U);
  first.reset();
  EXPECT_EQ(control_.counter("cufile_driver_opens"), 1U);
  second.reset();
  EXPECT_EQ(control_.counter("cufile_driver_opens"), 0U);
}

TEST_F(CuFileOf, OpeningMakesNoContextOnOtherDevices) {
  const auto device = open(1);
  const auto cufile = open_cufile(device);
  EXPECT_EQ(control_.counter("contexts_created:0"), 0U);
  EXPECT_EQ(control_.counter("contexts_created:1"), 1U);
}

TEST_F(CuFileOf, ADriverThatDoesNotStartIsNamed) {
  const auto device = open();
  control_.set_plan("cuFileDriverOpen:1=5001");
  const auto opened = CuFile::open(device);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code(), ErrorCode::unsupported);
  EXPECT_THAT(opened.error().message(), HasSubstr("cuFileDriverOpen failed with code 5001 (the driver is not loaded)"));
  EXPECT_THAT(opened.error().hint(), HasSubstr("nvidia-fs"));
  EXPECT_TRUE(CuFile::open(device).ok()) << "the next one tries again";
}

TEST_F(CuFileOf, CudasOwnErrorFollows) {
  const auto device = open();
  control_.set_plan("cuFileDriverOpen:1=CUDA_ERROR_NOT_PERMITTED");
  const auto opened = CuFile::open(device);
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.error().message(), HasSubstr("code 5011 (CUDA failed); CUDA_ERROR_NOT_PERMITTED"));
}

TEST_F(CuFileOf, ADriverThatIsOpenAlreadyIsUsedAndLeftOpen) {
  const auto device = open();
  control_.set_plan("cuFileDriverOpen:1=5026");
  {
    const auto cufile = open_cufile(device);
    EXPECT_EQ(control_.counter("calls:cuFileDriverClose"), 0U);
  }
  EXPECT_EQ(control_.counter("calls:cuFileDriverClose"), 0U);
}

TEST_F(CuFileOf, ReadsLandInDeviceMemory) {
  const auto device = open();
  const auto memory = DeviceMemory::allocate(device, 256 * kKiB);
  ASSERT_TRUE(memory.ok());
  const auto cufile = open_cufile(device);
  const auto file = cufile->register_file(fd_);
  ASSERT_TRUE(file.ok()) << file.error().to_string();
  const auto buffer = cufile->register_buffer(*memory);
  ASSERT_TRUE(buffer.ok()) << buffer.error().to_string();
  const memory::Span span = (*buffer)->span();
  EXPECT_EQ(cufile->read(**file, {span.address, 64 * kKiB, 128 * kKiB, 512 * kKiB}).value(), 128 * kKiB);
  EXPECT_TRUE(holds(span.part(64 * kKiB, 128 * kKiB), 512 * kKiB));
  EXPECT_TRUE(control_.is_poison(span.address, 64 * kKiB));
  EXPECT_EQ(control_.counter("cufile_unregistered"), 0U);
  EXPECT_EQ(control_.counter("host_to_device_bytes"), 0U);
}

TEST_F(CuFileOf, TheEndOfTheFileIsAShortReadAndThenNothing) {
  const auto device = open();
  const auto memory = DeviceMemory::allocate(device, 64 * kKiB);
  ASSERT_TRUE(memory.ok());
  const auto cufile = open_cufile(device);
  const auto file = cufile->register_file(fd_);
  ASSERT_TRUE(file.ok());
  const std::uintptr_t base = (*memory)->span().address;
  EXPECT_EQ(cufile->read(**file, {base, 0, 8 * kKiB, kFileBytes - 4 * kKiB}).value(), 4 * kKiB);
  EXPECT_EQ(cufile->read(**file, {base, 0, 8 * kKiB, kFileBytes}).value(), 0U);
}

TEST_F(CuFileOf, ErrorsOfReadsAreToldApart) {
  const auto device = open();
  const auto memory = DeviceMemory::allocate(device, 64 * kKiB);
  ASSERT_TRUE(memory.ok());
  const auto cufile = open_cufile(device);
  const auto file = cufile->register_file(fd_);
  ASSERT_TRUE(file.ok());
  const CuFileRead what{(*memory)->span().address, 0, 8 * kKiB, 4096};
  control_.set_plan("cuFileRead:1=EIO cuFileRead:2=5016 cuFileRead:3=short cuFileRead:4=5030");
  const auto by_errno = cufile->read(**file, what);
  ASSERT_FALSE(by_errno.ok());
  EXPECT_EQ(by_errno.error().code(), ErrorCode::io);
  EXPECT_EQ(by_errno.error().system_errno(), EIO);
  EXPECT_EQ(by_errno.error().offset(), 4096U);
  const auto by_code = cufile->read(**file, what);
  ASSERT_FALSE(by_code.ok());
  EXPECT_EQ(by_code.error().code(), ErrorCode::unsupported) << "another way may read it";
  EXPECT_THAT(by_code.error().message(), HasSubstr("cuFileRead failed with code 5016 (more than can be pinned)"));
  EXPECT_THAT(by_code.error().hint(), HasSubstr("BAR1"));
  EXPECT_EQ(cufile->read(**file, what).value(), 4 * kKiB);
  EXPECT_EQ(cufile->read(**file, what).error().code(), ErrorCode::io);
  EXPECT_EQ(cufile->read(**file, what).value(), 8 * kKiB);
}

TEST_F(CuFileOf, BuffersHaveTheSizesThatItTakes) {
  const auto device = open();
  const auto cufile = open_cufile(device);
  for (const std::uint64_t bytes : {4096U, 61440U, 65536U, 196608U}) {
    EXPECT_TRUE(cufile->register_buffer(allocate(device, bytes)).ok()) << bytes;
  }
  for (const std::uint64_t bytes : {256U, 65792U, 69632U, 200704U}) {
    const auto refused = cufile->register_buffer(allocate(device, bytes));
    ASSERT_FALSE(refused.ok()) << bytes;
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
    EXPECT_THAT(refused.error().message(), HasSubstr("multiples of"));
  }
}

TEST_F(CuFileOf, ARegistrationKeepsItsMemoryAndItsDriver) {
  auto device = open();
  auto memory = allocate(device, 64 * kKiB);
  auto cufile = open_cufile(device);
  auto buffer = cufile->register_buffer(std::move(memory));
  ASSERT_TRUE(buffer.ok());
  cufile.reset();
  device.reset();
  EXPECT_EQ(control_.counter("cufile_driver_opens"), 1U);
  EXPECT_EQ(control_.counter("allocations"), 1U);
  buffer->reset();
  EXPECT_EQ(control_.counter("cufile_driver_opens"), 0U);
  EXPECT_EQ(control_.counter("allocations"), 0U);
}

TEST_F(CuFileOf, ARegistrationThatIsRefusedLeavesOtherWaysOpen) {
  const auto device = open();
  const auto cufile = open_cufile(device);
  control_.set_plan("cuFileBufRegister:1=5016 cuFileHandleRegister:1=5008");
  const auto buffer = cufile->register_buffer(allocate(device, 64 * kKiB));
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.error().code(), ErrorCode::unsupported);
  EXPECT_THAT(buffer.error().message(), HasSubstr("cannot register 64.0 KiB of GPU 0"));
  const auto file = cufile->register_file(fd_);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code(), ErrorCode::unsupported);
  EXPECT_THAT(file.error().hint(), HasSubstr("XFS"));
}

TEST_F(CuFileOf, AForkedChildIsRefused) {
  const auto device = open();
  const auto cufile = open_cufile(device);
  const auto file = cufile->register_file(fd_);
  ASSERT_TRUE(file.ok());
  const int answer = testing::in_child([&] {
    if (CuFile::open(device).ok() || cufile->register_file(fd_).ok()) return 1;
    return cufile->read(**file, {0, 0, 4096, 0}).ok() ? 2 : 0;
  });
  EXPECT_EQ(answer, 0);
}

}  // namespace
}  // namespace infercluster::gpu
