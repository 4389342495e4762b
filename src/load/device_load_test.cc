// SPDX-License-Identifier: Apache-2.0
// What is particular to loads to a device: how often a byte is copied, whose work comes before whose, and what becomes
// of a load when the driver fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/units.h"
#include "gpu/stream.h"
#include "load/stream.h"
#include "load/test_repository.h"

namespace infercluster::load {
namespace {

using gpu_double::Control;
using safetensors::Dtype;
using ::testing::HasSubstr;

class DeviceLoad : public ::testing::Test {
 protected:
  DeviceLoad() {
    options_.device.emplace();
    if (!Control::is_there()) return;
    control_.emplace();
    control_->reset();
    control_->set_plan("delay_us=0..500 seed=21");
  }
  void TearDown() override {
    if (!control_) return;
    control_->set_plan("");
    control_->finish();
    EXPECT_EQ(control_->counter("violations"), 0U);
    EXPECT_EQ(control_->counter("live"), 0U);
  }

  // 12 MiB in 30 tensors, of sizes that are and are not multiples of 256.
  static void fill(TestRepository& repository) {
    std::vector<safetensors::Tensor> tensors;
    for (std::uint64_t i = 0; i < 30; ++i) {
      tensors.push_back(tensor_of("t" + std::to_string(i), Dtype::u8, {400 * kKiB + (i % 4 == 3 ? i : 0)}));
    }
    repository.add_file("m.safetensors", std::move(tensors));
  }

  Result<Loaded> load(const TestRepository& repository) {
    auto job = Job::start(repository.open(), options_, environment_);
    if (!job.ok()) return std::move(job).error();
    return (*job)->finish();
  }

  std::optional<Control> control_;  // none on a real driver
  Options options_;
  Environment environment_;
};

TEST_F(DeviceLoad, EachByteIsWrittenToTheHostOnceAndCopiedOnce) {
  if (!control_) GTEST_SKIP() << "only the double counts copies";
  TestRepository repository;
  fill(repository);
  const Loaded loaded = load(repository).value();
  EXPECT_EQ(loaded.report.moved_bytes, 0U);
  EXPECT_EQ(loaded.report.device_copy_bytes, loaded.report.bytes);
  EXPECT_EQ(loaded.report.gib_per_s(), 0.0);  // what a double takes is no speed
  EXPECT_EQ(control_->counter("host_to_device_bytes"), loaded.report.bytes);
  EXPECT_EQ(control_->counter("host_to_device_copies"), loaded.report.device_copies);
  EXPECT_EQ(control_->counter("pageable_copies"), 0U);
  EXPECT_LE(loaded.report.bytes_read, loaded.report.bytes + 8192);
  // Few and large: neighbours go together while their addresses do; some tensors here end off the alignment.
  EXPECT_LE(loaded.report.device_copies, 30U);
  EXPECT_LE(loaded.report.peak_host_bytes, 60 * kMiB);
  repository.expect_equal(loaded);
}

TEST_F(DeviceLoad, NeighboursOfWholeAlignmentsGoInOneCopyPerRead) {
  TestRepository repository;
  std::vector<safetensors::Tensor> tensors;
  for (int i = 0; i < 64; ++i) tensors.push_back(tensor_of("t" + std::to_string(i), Dtype::bf16, {64, 1024}));
  repository.add_file("m.safetensors", std::move(tensors));
  const Loaded loaded = load(repository).value();
  EXPECT_LE(loaded.report.device_copies, 3U);  // 8 MiB behind a header: two or three reads of 4 MiB
  repository.expect_equal(loaded);
}

TEST_F(DeviceLoad, ColumnsOfAMatrixGoAsRowsOfOneCopy) {
  TestRepository repository;
  repository.add_file("m.safetensors", {tensor_of("w", Dtype::f32, {2000, 512})});
  options_.slices = {{"w", {}, Shard{1, 3, 4}}};
  const Loaded loaded = load(repository).value();
  EXPECT_LE(loaded.report.device_copies, 4U);
  std::string expected;
  for (std::size_t row = 0; row < 2000; ++row) expected += repository.expected("w").substr(row * 2048 + 3 * 512, 512);
  EXPECT_TRUE(bytes_of(loaded.tensors[0]) == expected);
}

// Memory of a caching allocator may still be written by work that was queued before.
TEST_F(DeviceLoad, CopiesWaitForWhatTheCallersStreamHasQueued) {
  TestRepository repository;
  fill(repository);
  const auto device = gpu::Device::open(0).value();
  const auto stream = gpu::Stream::create(device).value();
  options_.device->stream = reinterpret_cast<std::uintptr_t>(stream->handle());
  options_.device->allocate = [&](std::uint64_t bytes) -> Result<memory::Block> {
    IC_TRY(auto memory, gpu::DeviceMemory::allocate(device, bytes));
    const memory::Span span = memory->span();
    IC_TRY(const auto current, gpu::Device::Current::make(*device));
    for (int i = 0; i < 50; ++i) {  // up to 25 ms of earlier work
      static_cast<void>(device->api().cuMemsetD8Async(span.address, 0xEE, span.bytes, stream->handle()));
    }
    return memory::Block{span, memory, nullptr};
  };
  const Loaded loaded = load(repository).value();
  ASSERT_TRUE(stream->wait().ok());
  repository.expect_equal(loaded);
}

// A consumer queues work on a tensor and lets it go; its block must not be overwritten before that work is done.
TEST_F(DeviceLoad, ABlockIsReusedBehindWhatTheConsumersStreamHasQueued) {
  TestRepository repository;
  fill(repository);
  const auto device = gpu::Device::open(0).value();
  const auto stream = gpu::Stream::create(device).value();
  options_.device->stream = reinterpret_cast<std::uintptr_t>(stream->handle());
  options_.memory = 6 * kMiB;
  auto loading = Stream::start(repository.open(), options_, environment_).value();
  std::vector<std::pair<std::string, std::shared_ptr<gpu::DeviceMemory>>> copies;
  while (true) {
    auto next = loading->next(std::chrono::seconds(20)).value();
    if (next.state == Stream::State::ended) break;
    ASSERT_EQ(next.state, Stream::State::tensor);
    const LoadedTensor tensor = std::move(*next.tensor);
    auto copy = gpu::DeviceMemory::allocate(device, tensor.bytes).value();
    const auto current = gpu::Device::Current::make(*device).value();
    const auto result = device->api().cuMemcpyDtoDAsync_v2(
        copy->span().address, reinterpret_cast<std::uintptr_t>(tensor.data), tensor.bytes, stream->handle());
    ASSERT_EQ(result, gpu::CuResult::success);
    copies.emplace_back(tensor.name, std::move(copy));
  }
  EXPECT_EQ(loading->report().donated_blocks, 0U);
  loading.reset();
  ASSERT_TRUE(stream->wait().ok());
  for (const auto& [name, copy] : copies) {
    std::string bytes(copy->span().bytes, '\0');
    ASSERT_TRUE(gpu::copy_to_host(device, copy->span(), reinterpret_cast<std::byte*>(bytes.data())).ok());
    EXPECT_TRUE(bytes == repository.expected(name)) << name;
  }
}

TEST_F(DeviceLoad, RandomSubsetsThatAreKeptAreEqualAtTheEnd) {
  TestRepository repository;
  fill(repository);
  std::mt19937 random(8);
  for (int round = 0; round < 6; ++round) {
    options_.memory = 8 * kMiB;
    auto loading = Stream::start(repository.open(), options_, environment_).value();
    std::vector<LoadedTensor> kept;
    while (true) {
      auto next = loading->next(std::chrono::seconds(20)).value();
      if (next.state == Stream::State::ended) break;
      if (random() % 4 == 0 && kept.size() < 6) kept.push_back(std::move(*next.tensor));
    }
    loading.reset();
    for (const LoadedTensor& tensor : kept) repository.expect_equal(tensor);
  }
}

TEST_F(DeviceLoad, AModelThatDoesNotFitIsRefusedWithTheFigures) {
  if (!control_) GTEST_SKIP() << "only the double is as small as that";
  TestRepository repository;
  fill(repository);
  control_->set_plan("memory_mib=8");
  const auto loaded = load(repository);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code(), ErrorCode::out_of_memory);
  EXPECT_THAT(loaded.error().to_string(), HasSubstr("free of"));
}

TEST_F(DeviceLoad, TensorsOfAnotherDeviceAreRefusedByName) {
  TestRepository repository;
  fill(repository);
  for (const int device : {-1, 1}) {
    if (device != device_there(device)) continue;  // a machine with one GPU
    const CallerMemory memory(400 * kKiB, device);
    options_.into = {{"t1", memory.span()}};
    const auto loaded = load(repository);
    ASSERT_FALSE(loaded.ok());
    EXPECT_EQ(loaded.error().tensor(), "t1");
    EXPECT_THAT(loaded.error().to_string(), HasSubstr("CUDA device 0"));
  }
}

// Each call in turn, until a load makes fewer.
void expect_one_error_each(const Control& control, const std::string& form, const std::function<Result<Loaded>()>& load,
                           const TestRepository& repository) {
  for (int nth = 1; nth < 2000; ++nth) {
    control.set_plan(form + ":" + std::to_string(nth) + "=CUDA_ERROR_LAUNCH_FAILED");
    const std::uint64_t injected = control.counter("faults_injected");
    auto loaded = load();
    const bool hit = control.counter("faults_injected") > injected;
    control.set_plan("");
    if (loaded.ok()) {
      repository.expect_equal(*loaded);  // a call without which it goes
    } else {
      ASSERT_THAT(loaded.error().to_string(), HasSubstr("CUDA_ERROR_LAUNCH_FAILED")) << form << nth;
    }
    loaded = Error(ErrorCode::cancelled, "");
    control.finish();
    ASSERT_EQ(control.counter("live"), 0U) << form << nth;
    if (!hit) {
      EXPECT_GT(nth, 5);
      return;
    }
  }
  FAIL() << "every load was hit";
}

TEST_F(DeviceLoad, AFailureOfAnyCallIsOneErrorAndLeaksNothing) {
  if (!control_) GTEST_SKIP() << "only the double fails on demand";
  TestRepository repository;
  repository.add_file("m.safetensors", {tensor_of("a", Dtype::f32, {70000}), tensor_of("b", Dtype::f32, {3, 70001})});
  options_.slices = {{"b", {}, Shard{1, 0, 1}}};
  options_.memory = 1536 * kKiB;
  ASSERT_TRUE(load(repository).ok());  // a driver that cannot be initialised is remembered, and not tried again
  expect_one_error_each(
      *control_, "any", [&] { return load(repository); }, repository);
}

TEST_F(DeviceLoad, AFailureOfAnyQueuedCopyIsOneErrorAndLeaksNothing) {
  if (!control_) GTEST_SKIP() << "only the double fails on demand";
  TestRepository repository;
  repository.add_file("m.safetensors", {tensor_of("a", Dtype::f32, {700000}), tensor_of("b", Dtype::f32, {3, 70001})});
  options_.memory = 1536 * kKiB;
  expect_one_error_each(
      *control_, "async", [&] { return load(repository); }, repository);
}

}  // namespace
}  // namespace infercluster::load
