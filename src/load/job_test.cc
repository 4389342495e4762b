// SPDX-License-Identifier: Apache-2.0
#include "load/job.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/units.h"
#include "load/seal.h"
#include "load/test_repository.h"
#include "os/limits.h"
#include "os/page_cache.h"

namespace infercluster::load {
namespace {

using safetensors::Dtype;
using ::testing::HasSubstr;

class JobTest : public OnEachWay {
 protected:
  // Two shards with all kinds: large, small, empty, scalar.
  static void fill(TestRepository& repository) {
    repository.add_file("a.safetensors",
                        {tensor_of("big", Dtype::bf16, {1024, 1500}), tensor_of("scalar", Dtype::f32, {}),
                         tensor_of("empty", Dtype::f32, {0, 4}), tensor_of("odd", Dtype::u8, {1001})});
    repository.add_file("b.safetensors", {tensor_of("wide", Dtype::f32, {300, 700}), tensor_of("last", Dtype::i8, {5})},
                        3);
  }

  static void warm(const std::string& path) {
    const auto bytes = os::read_small_file(path, kGiB);
    ASSERT_TRUE(bytes.ok());
  }

  static void overwrite(const LoadedTensor& tensor, std::byte value) {
    if (tensor.bytes == 0) return;
    const std::vector<std::byte> bytes(tensor.bytes, value);
    if (tensor.device < 0) {
      std::memcpy(tensor.data, bytes.data(), bytes.size());
      return;
    }
    const memory::Span span{memory::Kind::cuda, tensor.device, reinterpret_cast<std::uintptr_t>(tensor.data),
                            tensor.bytes};
    ASSERT_TRUE(gpu::copy_to_device(gpu::Device::open(tensor.device).value(), bytes.data(), span).ok());
  }

  static void flip_byte(const std::string& path, std::uint64_t offset) {
    const Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    char byte = 0;
    ASSERT_EQ(::pread(fd.get(), &byte, 1, static_cast<off_t>(offset)), 1);
    byte = static_cast<char>(byte ^ 0x10);
    ASSERT_EQ(::pwrite(fd.get(), &byte, 1, static_cast<off_t>(offset)), 1);
  }
};

TEST_P(JobTest, AllTensorsArriveEqualColdAndWarm) {
  TestRepository repository;
  fill(repository);
  for (const bool cold : {true, false}) {
    if (cold) {
      repository.make_cold("a.safetensors");
      repository.make_cold("b.safetensors");
    } else {
      warm(repository.path("a.safetensors"));
      warm(repository.path("b.safetensors"));
    }
    const Loaded loaded = load(repository.open()).value();
    repository.expect_equal(loaded);
    EXPECT_EQ(loaded.report.tensors, 6U);
    EXPECT_EQ(loaded.report.bytes, 1024 * 1500 * 2 + 4 + 1001 + 300 * 700 * 4 + 5U);
    EXPECT_EQ(loaded.report.backend, GetParam().backend == io::BackendChoice::uring ? "io_uring" : "threads");
    ASSERT_EQ(loaded.report.files.size(), 2U);
    for (const FileReport& file : loaded.report.files) {
      if (!cold) {
        EXPECT_EQ(file.mode, "resident") << file.reason;
      }
      EXPECT_FALSE(file.reason.empty());
    }
  }
}

TEST_P(JobTest, TensorsAreWritableAndOutliveTheJob) {
  TestRepository repository;
  fill(repository);
  Loaded loaded = load(repository.open()).value();
  std::vector<LoadedTensor> tensors = std::move(loaded.tensors);
  for (LoadedTensor& tensor : tensors) overwrite(tensor, std::byte{1});
  LoadedTensor kept = tensors.back();
  tensors.clear();
  EXPECT_EQ(bytes_of(kept), std::string(kept.bytes, 1));
}

TEST_P(JobTest, EveryHeaderLengthLandsAligned) {
  for (std::size_t padding = 0; padding < 17; ++padding) {
    TestRepository repository;
    repository.add_file(
        "m.safetensors",
        {tensor_of("f64", Dtype::f64, {4097}), tensor_of("u8", Dtype::u8, {4095}), tensor_of("f32", Dtype::f32, {513}),
         tensor_of("f16", Dtype::f16, {511}), tensor_of("bool", Dtype::boolean, {1})},
        padding * 257);
    const Loaded loaded = load(repository.open()).value();
    repository.expect_equal(loaded);
    if (padding == 0) {
      EXPECT_EQ(loaded.report.moved_bytes, 0U);
    }
    if (padding == 1 && !on_device()) {
      EXPECT_GT(loaded.report.moved_bytes, 32768U);
    }
  }
}

TEST_P(JobTest, OnlyEmptyTensorsNeedNoRead) {
  TestRepository repository;
  repository.add_file("e.safetensors", {tensor_of("a", Dtype::f32, {0}), tensor_of("b", Dtype::u8, {2, 0})});
  const Loaded loaded = load(repository.open()).value();
  repository.expect_equal(loaded);
  EXPECT_EQ(loaded.report.requests, 0U);
  EXPECT_EQ(loaded.report.peak_host_bytes, 0U);
}

TEST_P(JobTest, NamesAndSlicesBringOnlyTheirBytes) {
  TestRepository repository;
  fill(repository);
  repository.make_cold("a.safetensors");
  options_.names = {"big"};
  options_.slices = {{"big", {}, Shard{0, 2, 8}}};
  Loaded loaded = load(repository.open()).value();
  ASSERT_EQ(loaded.tensors.size(), 1U);
  EXPECT_EQ(loaded.tensors[0].shape, (std::vector<std::uint64_t>{128, 1500}));
  EXPECT_TRUE(bytes_of(loaded.tensors[0]) == repository.expected("big").substr(2 * 128 * 3000, 128 * 3000));
  EXPECT_LE(loaded.report.bytes_read, 128 * 3000 + 2 * 4096U);
  EXPECT_EQ(loaded.report.files[1].mode, "none");

  options_.slices = {{"big", {{10, 500}, {100, 107}}, std::nullopt}};
  loaded = load(repository.open()).value();
  const std::string found = bytes_of(loaded.tensors[0]);
  for (std::size_t row = 0; row < 490; ++row) {
    ASSERT_EQ(found.substr(row * 14, 14), repository.expected("big").substr(((row + 10) * 1500 + 100) * 2, 14));
  }
}

TEST_P(JobTest, IntoCallersMemoryAllocatesNothingOfTheModelsSize) {
  TestRepository repository;
  fill(repository);
  std::map<std::string, CallerMemory> memory;
  for (const char* name : {"big", "scalar", "empty", "odd", "wide", "last"}) {
    const auto at = memory.emplace(name, caller_memory(repository.expected(name).size())).first;
    options_.into.push_back({name, at->second.span()});
  }
  options_.memory = 2 * kMiB;
  const Loaded loaded = load(repository.open()).value();
  repository.expect_bytes(loaded);
  for (const LoadedTensor& tensor : loaded.tensors) {
    if (tensor.bytes > 0) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data), memory.at(tensor.name).span().address);
    }
  }
  EXPECT_LE(loaded.report.peak_host_bytes, 2 * kMiB);
  for (const LoadedTensor& tensor : loaded.tensors) EXPECT_EQ(tensor.owner, nullptr);
}

TEST_P(JobTest, BudgetsOfAnySizeHoldOrAreRefusedWithTheFigure) {
  TestRepository repository;
  fill(repository);
  const CallerMemory memory = caller_memory(1024 * 1500 * 2);
  options_.into = {{"big", memory.span()}};
  for (const std::uint64_t budget :
       {std::uint64_t{0}, std::uint64_t{1}, kMiB, kMiB + 64 * kKiB, 2 * kMiB, 8 * kMiB, kGiB}) {
    options_.memory = budget;
    const auto loaded = load(repository.open());
    if (loaded.ok()) {
      EXPECT_LE(loaded->report.working_bytes, budget);
      EXPECT_GE(budget, kMiB);
      EXPECT_LE(loaded->report.working_bytes,
                64 * kMiB);  // a small model takes small buffers, however much it may take
    } else {
      EXPECT_LE(budget, kMiB);
      EXPECT_THAT(loaded.error().to_string(), HasSubstr("at least"));
    }
  }
}

TEST_P(JobTest, SealsAreCheckedInThePipelineAndNameTheTensor) {
  TestRepository repository;
  fill(repository);
  options_.verify = Verify::always;
  const auto unsealed = load(repository.open());
  ASSERT_FALSE(unsealed.ok());
  EXPECT_THAT(unsealed.error().to_string(), HasSubstr("infercluster seal"));

  repository.seal("a.safetensors");
  repository.seal("b.safetensors");
  const Loaded loaded = load(repository.open()).value();
  repository.expect_equal(loaded);
  EXPECT_EQ(loaded.report.files[0].verification, "seal");

  for (const std::uint64_t offset : {std::uint64_t{20}, 200 * kKiB, 1024 * 3000 * 1UL}) {
    flip_byte(repository.path("a.safetensors"), offset);
    if (offset > 100) {
      const auto damaged = load(repository.open());
      ASSERT_FALSE(damaged.ok());
      EXPECT_EQ(damaged.error().code(), ErrorCode::corrupt);
      EXPECT_EQ(damaged.error().path(), repository.path("a.safetensors"));
      EXPECT_FALSE(damaged.error().tensor().empty());
      EXPECT_EQ(damaged.error().offset(), align_down(offset, 64 * kKiB));
      options_.verify = Verify::automatic;  // checksums that are there are used
      EXPECT_FALSE(load(repository.open()).ok());
      options_.verify = Verify::never;
      EXPECT_TRUE(load(repository.open()).ok());
      options_.verify = Verify::always;
    }
    flip_byte(repository.path("a.safetensors"), offset);
  }
}

TEST_P(JobTest, SealsAlsoCoverSlicesAndCallersMemory) {
  TestRepository repository;
  fill(repository);
  repository.seal("a.safetensors");
  options_.verify = Verify::always;
  options_.names = {"big", "odd"};
  options_.slices = {{"big", {}, Shard{0, 1, 2}}};
  const CallerMemory odd = caller_memory(1001);
  options_.into = {{"odd", odd.span()}};
  ASSERT_TRUE(load(repository.open()).ok());
  flip_byte(repository.path("a.safetensors"), 1024 * 3000 - 5000);  // in the half that is wanted
  EXPECT_FALSE(load(repository.open()).ok());
}

TEST_P(JobTest, BlobsOfACacheAreCheckedAgainstTheirNames) {
  TestRepository repository;
  repository.add_file("m.safetensors", {tensor_of("a", Dtype::f32, {100000})}, 1);
  const std::string file = repository.path("m.safetensors");
  std::filesystem::create_directory(repository.path() + "/blobs");
  const std::string good = repository.path() + "/blobs/" + std::string(64, '0');
  std::filesystem::rename(file, good);
  options_.verify = Verify::always;
  auto opened = std::make_shared<const Repository>(open_repository(good).value());
  const auto wrong = load(opened);
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().code(), ErrorCode::corrupt);
  const std::string message = wrong.error().message();  // names what it found: that is the right name
  const std::string hash = message.substr(message.find("is ") + 3, 64);
  const std::string right = repository.path() + "/blobs/" + hash;
  std::filesystem::rename(good, right);
  opened = std::make_shared<const Repository>(open_repository(right).value());
  const Loaded loaded = load(opened).value();
  repository.expect_equal(loaded);
  EXPECT_EQ(loaded.report.files[0].verification, "sha256");
}

TEST_P(JobTest, SparseFilesBeyondTwoGibibytesHaveTheirMarkers) {
  const std::uint64_t bytes = 3 * kGiB;
  testing::TempDir directory;
  std::vector<safetensors::Tensor> tensors{tensor_of("t", Dtype::u8, {bytes})};
  const std::string header = safetensors::build_header(tensors, std::nullopt).value();
  const std::string path = directory.write("big.safetensors", header);
  std::filesystem::resize_file(path, header.size() + bytes);
  const std::vector<std::uint64_t> marks{(1ULL << 31) - 1, 1ULL << 31, (1ULL << 31) + 4096, bytes - 1};
  {
    const Fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    for (const std::uint64_t mark : marks)
      ASSERT_EQ(::pwrite(fd.get(), "x", 1, static_cast<off_t>(header.size() + mark)), 1);
  }
  options_.slices = {{"t", {{(1ULL << 31) - 100, (1ULL << 31) + 5000}}, std::nullopt}};
  Loaded loaded = load(std::make_shared<const Repository>(open_repository(path).value())).value();
  const std::string data = bytes_of(loaded.tensors[0]);
  EXPECT_EQ(data[99], 'x');
  EXPECT_EQ(data[100], 'x');
  EXPECT_EQ(data[4196], 'x');
  EXPECT_EQ(data[98], '\0');
  options_.slices = {{"t", {{bytes - 10, bytes}}, std::nullopt}};
  loaded = load(std::make_shared<const Repository>(open_repository(path).value())).value();
  EXPECT_EQ(bytes_of(loaded.tensors[0])[9], 'x');
}

TEST_P(JobTest, AFileThatChangedSinceItsHeaderWasReadIsRefused) {
  TestRepository repository;
  fill(repository);
  const auto opened = repository.open();
  flip_byte(repository.path("b.safetensors"), 500000);
  const auto loaded = load(opened);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code(), ErrorCode::changed);
  EXPECT_EQ(loaded.error().path(), repository.path("b.safetensors"));
}

TEST_P(JobTest, TheResultIsGivenOnce) {
  TestRepository repository;
  fill(repository);
  auto job = Job::start(repository.open(), options_, environment_).value();
  EXPECT_TRUE(job->finish().ok());
  EXPECT_FALSE(job->finish().ok());
  EXPECT_TRUE(job->wait_for(std::chrono::nanoseconds(0)));
  EXPECT_EQ(job->progress().bytes_done, job->progress().bytes_total);
}

TEST_P(JobTest, ADirectLoadFillsThePageCacheBehindItself) {
  TestRepository repository;
  repository.add_file("m.safetensors", {tensor_of("a", Dtype::f32, {4000000})});
  PageCacheFiller filler(nullptr);
  environment_.filler = &filler;
  const std::string path = repository.path("m.safetensors");
  const auto opened = repository.open();
  for (const PageCache policy : {PageCache::bypass, PageCache::automatic}) {
    repository.make_cold("m.safetensors");
    options_.page_cache = policy;
    auto job = Job::start(opened, options_, environment_).value();
    const Loaded loaded = job->finish().value();
    if (loaded.report.files[0].mode != "direct")
      GTEST_SKIP() << "no direct I/O here: " << loaded.report.files[0].reason;
    while (!job->wait_for_page_cache(std::chrono::seconds(10))) {
    }
    EXPECT_EQ(loaded.report.page_cache_fill_bytes > 0, policy == PageCache::automatic);
    const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::vector<std::byte> all(16 * kMiB);
    const double resident = os::residency_of(fd, 0, std::filesystem::file_size(path)).fraction;
    if (policy == PageCache::bypass) {
      EXPECT_LT(resident, 0.5);
    } else {
      EXPECT_GT(resident, 0.95);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, JobTest, every_way(), way_name);

}  // namespace
}  // namespace infercluster::load
