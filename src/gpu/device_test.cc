// SPDX-License-Identifier: Apache-2.0
#include "gpu/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "gpu/driver.h"
#include "gpu/event.h"
#include "gpu/gds_findings.h"
#include "gpu/gpu_test_helpers.h"
#include "gpu/memory.h"
#include "gpu/stream.h"
#include "testing/child.h"

namespace infercluster::gpu {
namespace {

using ::testing::HasSubstr;

std::string library() {
  return std::getenv("INFERCLUSTER_LIBCUDA");
}

class DriverOf : public GpuTest {};

TEST_F(DriverOf, AnOlderDriverIsRefusedWithBothVersions) {
  control_.set_plan("driver_version=11080");
  const auto loaded = Driver::load(library());
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code(), ErrorCode::unsupported);
  EXPECT_THAT(loaded.error().message(), HasSubstr("supports CUDA 11.8, and 12.0 or newer is needed"));
  EXPECT_THAT(loaded.error().hint(), HasSubstr("Update"));
}

TEST_F(DriverOf, TheOldestThatIsSupportedLoads) {
  control_.set_plan("driver_version=12000");
  const auto loaded = Driver::load(library());
  ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
  EXPECT_EQ(loaded->version(), 12000);
}

TEST_F(DriverOf, WhatCuInitSaysReachesTheUser) {
  control_.set_plan("cuInit:1=CUDA_ERROR_NO_DEVICE");
  const auto loaded = Driver::load(library());
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code(), ErrorCode::unsupported);
  EXPECT_THAT(loaded.error().message(), HasSubstr("cuInit failed with CUDA_ERROR_NO_DEVICE"));
  EXPECT_THAT(loaded.error().message(), HasSubstr("100"));
  EXPECT_THAT(loaded.error().hint(), HasSubstr("CUDA_VISIBLE_DEVICES"));
}

TEST_F(DriverOf, AVersionThatIsNotToldIsAnErrorOfItsOwn) {
  control_.set_plan("cuDriverGetVersion:1=CUDA_ERROR_UNKNOWN");
  const auto loaded = Driver::load(library());
  ASSERT_FALSE(loaded.ok());
  EXPECT_THAT(loaded.error().message(), HasSubstr("cuDriverGetVersion failed with CUDA_ERROR_UNKNOWN"));
}

class DeviceOf : public GpuTest {};

TEST_F(DeviceOf, OnlyTheDeviceInUseGetsAContext) {
  ASSERT_EQ(device_count().value(), 2);
  EXPECT_EQ(control_.counter("contexts_created"), 0U);
  {
    const auto device = open(1);
    EXPECT_EQ(device->ordinal(), 1);
    EXPECT_FALSE(device->name().empty());
    EXPECT_THAT(device->text(), HasSubstr("GPU 1 ("));
    EXPECT_THAT(device->pci_bus_id(), ::testing::MatchesRegex("[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\\.0"));
    EXPECT_EQ(control_.counter("contexts_created:0"), 0U);
    EXPECT_EQ(control_.counter("contexts_created:1"), 1U);
    EXPECT_EQ(control_.counter("contexts_retained:1"), 1U);
  }
  EXPECT_EQ(control_.counter("contexts_retained:1"), 0U);
}

TEST_F(DeviceOf, TwoJobsShareOneContext) {
  auto first = open(0);
  const auto second = open(0);
  EXPECT_EQ(first, second);
  EXPECT_EQ(control_.counter("contexts_retained:0"), 1U);
  first.reset();
  EXPECT_EQ(control_.counter("contexts_retained:0"), 1U);
}

TEST_F(DeviceOf, AnOrdinalThatIsNotThereIsNamedWithThoseThatAre) {
  for (const int ordinal : {-1, 2, 99}) {
    const auto device = Device::open(ordinal);
    ASSERT_FALSE(device.ok());
    EXPECT_EQ(device.error().code(), ErrorCode::invalid_argument);
    EXPECT_THAT(device.error().message(), HasSubstr("no GPU " + std::to_string(ordinal) + ": there are 2, from 0 on"));
  }
}

TEST_F(DeviceOf, AContextThatCannotBeMadeIsTriedAnewByTheNextOpener) {
  control_.set_plan("cuDevicePrimaryCtxRetain:1=CUDA_ERROR_OUT_OF_MEMORY");
  const auto failed = Device::open(0);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code(), ErrorCode::out_of_memory);
  EXPECT_THAT(failed.error().message(), HasSubstr("cannot make a context on GPU 0"));
  EXPECT_THAT(failed.error().message(), HasSubstr("cuDevicePrimaryCtxRetain failed with CUDA_ERROR_OUT_OF_MEMORY"));
  EXPECT_TRUE(Device::open(0).ok());
}

TEST_F(DeviceOf, TheCurrentContextIsGivenBack) {
  const auto zero = open(0);
  const auto one = open(1);
  const auto current = [&] {
    CuContext context = nullptr;
    EXPECT_EQ(zero->api().cuCtxGetCurrent(&context), CuResult::success);
    return context;
  };
  EXPECT_EQ(current(), nullptr);
  {
    const auto outer = Device::Current::make(*zero);
    ASSERT_TRUE(outer.ok());
    CuContext of_zero = current();
    EXPECT_NE(of_zero, nullptr);
    {
      const auto inner = Device::Current::make(*one);
      ASSERT_TRUE(inner.ok());
      EXPECT_NE(current(), of_zero);
    }
    EXPECT_EQ(current(), of_zero);
    EXPECT_TRUE(zero->memory().ok());
    EXPECT_EQ(current(), of_zero);
  }
  EXPECT_EQ(current(), nullptr);
}

TEST_F(DeviceOf, MemoryIsCountedByTheDriver) {
  control_.set_plan("memory_mib=64");
  const auto device = open(0);
  const auto before = device->memory();
  ASSERT_TRUE(before.ok());
  EXPECT_EQ(before->total, 64U << 20);
  const auto memory = allocate(device, 1 << 20);
  EXPECT_LE(device->memory()->free, before->free - (1 << 20));
}

TEST_F(DeviceOf, AForkedChildTouchesNothing) {
  const auto device = open(0);
  auto memory = allocate(device, 4096);
  const int answer = testing::in_child([&] {
    if (Device::open(0).ok() || device->memory().ok() || DeviceMemory::allocate(device, 16).ok()) return 1;
    memory.reset();  // calls no driver: the parent's memory stays
    return device->memory().error().message().find("fork") == std::string::npos ? 2 : 0;
  });
  EXPECT_EQ(answer, 0);
  EXPECT_EQ(control_.counter("allocations"), 1U);
}

TEST_F(DeviceOf, DoctorMakesNoContextAndOpensNoCuFileDriver) {
  const auto findings = gds_findings();
  for (const char* const counter : {"contexts_created:0", "contexts_created:1", "cufile_driver_opens"}) {
    EXPECT_EQ(control_.counter(counter), 0U) << counter;
  }
  std::string subjects;
  for (const GdsFinding& finding : findings) {
    subjects += finding.subject + ";";
    EXPECT_FALSE(finding.state.empty()) << finding.subject;
    EXPECT_FALSE(finding.consequence.empty()) << finding.subject;
  }
  EXPECT_EQ(subjects, "NVIDIA driver;GPU 0;BAR1;GPU 1;BAR1;cuFile;nvidia-fs;GDS compatibility mode;");
  EXPECT_THAT(findings.at(0).state, HasSubstr("2 GPUs"));
  EXPECT_THAT(findings.at(1).state, HasSubstr("8.00 GiB"));
  EXPECT_THAT(findings.at(5).state, HasSubstr("version 1.14"));
}

TEST_F(DeviceOf, DoctorGoesOnWhereADeviceDoesNotAnswer) {
  for (const char* const call : {"cuDeviceGet:1", "cuDeviceGetName:1", "cuDeviceTotalMem:1", "cuDeviceGetPCIBusId:1"}) {
    control_.set_plan(std::string(call) + "=CUDA_ERROR_OPERATING_SYSTEM");
    const auto findings = gds_findings();
    ASSERT_GE(findings.size(), 4U) << call;
    EXPECT_EQ(findings[1].level, GdsFinding::Level::warning) << call;
    EXPECT_THAT(findings[1].state, HasSubstr("CUDA_ERROR_OPERATING_SYSTEM"));
    EXPECT_EQ(findings[2].subject, "GPU 1") << call;
    EXPECT_EQ(findings[2].level, GdsFinding::Level::good) << call;
  }
}

class MemoryOf : public GpuTest {};

TEST_F(MemoryOf, StartsAlignedAndIsRoundedUp) {
  const auto device = open(0);
  for (const auto& [bytes, capacity] : {std::pair<std::uint64_t, std::uint64_t>{0, 256},
                                        {1, 256},
                                        {257, 512},
                                        {65536, 65536},
                                        {65537, 69632},
                                        {1U << 20, 1U << 20}}) {
    const auto memory = allocate(device, bytes);
    EXPECT_EQ(memory->span().address % kDeviceAlignment, 0U);
    EXPECT_EQ(memory->span().bytes, bytes);
    EXPECT_EQ(memory->span().kind, memory::Kind::cuda);
    EXPECT_EQ(memory->span().device, 0);
    EXPECT_EQ(memory->capacity(), capacity);
  }
}

TEST_F(MemoryOf, WhatIsNotThereIsRefusedWithWhatIs) {
  control_.set_plan("memory_mib=16");
  const auto device = open(0);
  const auto memory = DeviceMemory::allocate(device, 1U << 30);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.error().code(), ErrorCode::out_of_memory);
  EXPECT_THAT(memory.error().message(), HasSubstr("cannot allocate 1.00 GiB on GPU 0"));
  EXPECT_THAT(memory.error().message(), HasSubstr("of 16.0 MiB are free"));
  EXPECT_FALSE(DeviceMemory::allocate(device, UINT64_MAX - 5).ok());
}

TEST_F(MemoryOf, BytesGoThereAndBack) {
  const auto device = open(1);
  const auto memory = allocate(device, 100000);
  std::vector<std::byte> sent(100000);
  for (std::size_t place = 0; place < sent.size(); ++place) sent[place] = pattern(place);
  ASSERT_TRUE(copy_to_device(device, sent.data(), memory->span()).ok());
  std::vector<std::byte> back(100000);
  ASSERT_TRUE(copy_to_host(device, memory->span(), back.data()).ok());
  EXPECT_EQ(sent, back);
  EXPECT_EQ(sent, bytes_of(memory->span()));
}

TEST_F(MemoryOf, PinnedMemoryIsKnownWhileItIsPinned) {
  const auto device = open(0);
  auto ring = pinned_arena(device, 1 << 20);
  EXPECT_EQ(control_.counter("registered_bytes"), 1U << 20);
  const auto around = pinned_around(ring.part(4096, 1));
  ASSERT_TRUE(around.has_value());
  EXPECT_EQ(around->address, ring.arena->span().address);
  EXPECT_EQ(around->bytes, 1U << 20);
  const auto again = Pinned::make(device, ring.part(0, 4096));
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.error().message(), HasSubstr("cannot pin 4.0 KiB of host memory on GPU 0"));
  EXPECT_THAT(again.error().message(), HasSubstr("CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"));
  ring.pinned.reset();
  EXPECT_FALSE(pinned_around(ring.part(4096, 1)).has_value());
  EXPECT_EQ(control_.counter("registrations"), 0U);
}

class EventOf : public GpuTest {};

TEST_F(EventOf, PassesWhenTheWorkBeforeItIsDone) {
  const auto device = open(0);
  const auto memory = allocate(device, 4096);
  const auto ring = pinned_arena(device, 4096);
  const auto stream = Stream::create(device);
  ASSERT_TRUE(stream.ok());
  const auto event = Event::create(device);
  ASSERT_TRUE(event.ok());
  EXPECT_TRUE((*event)->passed().value()) << "nothing was recorded";
  control_.hold();
  {
    const auto current = Device::Current::make(*device);
    ASSERT_EQ(device->api().cuMemcpyHtoDAsync_v2(memory->span().address, ring.arena->data(), 4096, (*stream)->handle()),
              CuResult::success);
  }
  ASSERT_TRUE((*event)->record(**stream).ok());
  EXPECT_FALSE((*event)->passed().value());
  control_.release();
  ASSERT_TRUE((*event)->wait().ok());
  EXPECT_TRUE((*event)->passed().value());
}

TEST_F(EventOf, MarksTheDefaultStreamToo) {
  const auto device = open(0);
  const auto event = Event::create(device);
  ASSERT_TRUE(event.ok());
  ASSERT_TRUE((*event)->record(StreamId{0}).ok());
  EXPECT_TRUE((*event)->wait().ok());
}

}  // namespace
}  // namespace infercluster::gpu
