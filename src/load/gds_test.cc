// SPDX-License-Identifier: Apache-2.0
// Loads by GPUDirect Storage, on the doubles of the driver and of cuFile.
#include "load/gds.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/units.h"
#include "load/gds_book.h"
#include "load/seal.h"
#include "load/stream.h"
#include "load/test_repository.h"
#include "os/page_cache.h"

namespace infercluster::load {
namespace {

using gpu_double::Control;
using safetensors::Dtype;
using ::testing::HasSubstr;

class GdsLoad : public ::testing::Test {
 protected:
  GdsLoad() {
    control_.reset();
    control_.set_plan("delay_us=0..300 seed=4 cufile_mode=nvidia_fs");
    options_.device.emplace();
    options_.gds = Gds::always;
    options_.page_cache = PageCache::bypass;
    book_.emplace();
    environment_.gds = &*book_;
    repository_.add_file("a.safetensors",
                         {tensor_of("a", Dtype::bf16, {1024, 1500}), tensor_of("b", Dtype::u8, {77777}),
                          tensor_of("none", Dtype::f32, {0}), tensor_of("c", Dtype::f32, {3, 70001})},
                         5);
    repository_.add_file("b.safetensors", {tensor_of("d", Dtype::f32, {2048, 512})});
  }
  void TearDown() override {
    control_.set_plan("");
    book_.reset();
    control_.finish();
    EXPECT_EQ(control_.counter("violations"), 0U);
    EXPECT_EQ(control_.counter("live"), 0U);
  }

  Result<Loaded> load() {
    make_cold();
    auto job = Job::start(repository_.open(), options_, environment_);
    if (!job.ok()) return std::move(job).error();
    return (*job)->finish();
  }

  void seal() const {
    for (const char* const file : {"a.safetensors", "b.safetensors"}) repository_.seal(file);
  }
  void make_cold() const {
    for (const char* const file : {"a.safetensors", "b.safetensors"}) repository_.make_cold(file);
  }

  Control control_;
  Options options_;
  Environment environment_;
  std::optional<GdsBook> book_;
  TestRepository repository_;
};

TEST_F(GdsLoad, NoByteTouchesTheHostButTheLastOfEachFile) {
  const Loaded loaded = load().value();
  EXPECT_EQ(control_.counter("cufile_unaligned"), 0U);
  EXPECT_EQ(control_.counter("cufile_unregistered"), 0U);
  EXPECT_EQ(control_.counter("cufile_compat_reads"), 0U);
  EXPECT_LT(control_.counter("host_to_device_bytes"), 2 * 4096U);
  EXPECT_EQ(loaded.report.gds_bytes, control_.counter("cufile_bytes"));
  EXPECT_LT(loaded.report.bytes_read - loaded.report.gds_bytes, 2 * 4096U);
  EXPECT_EQ(loaded.report.peak_host_bytes, 0U);
  EXPECT_EQ(loaded.report.moved_bytes, 0U);
  for (const FileReport& file : loaded.report.files) {
    EXPECT_EQ(file.mode, "gds");
    EXPECT_THAT(file.reason, HasSubstr("nvidia_fs"));
    EXPECT_THAT(file.verification, HasSubstr("unverified"));
  }
  repository_.expect_equal(loaded);
}

TEST_F(GdsLoad, SlicesAndStreamsToo) {
  options_.slices = {{"d", {}, Shard{1, 1, 2}}};
  const Loaded loaded = load().value();
  std::string expected;
  for (std::size_t row = 0; row < 2048; ++row) expected += repository_.expected("d").substr(row * 2048 + 1024, 1024);
  EXPECT_TRUE(bytes_of(loaded.tensors[4]) == expected);
  options_.slices.clear();
  options_.memory = 9 * kMiB;
  const auto stream = Stream::start(repository_.open(), options_, environment_).value();
  std::size_t seen = 0;
  while (true) {
    const auto next = stream->next(std::chrono::seconds(20)).value();
    if (next.state == Stream::State::ended) break;
    repository_.expect_equal(*next.tensor);
    ++seen;
  }
  EXPECT_EQ(seen, repository_.size());
}

TEST_F(GdsLoad, CompatibilityModeIsNoGds) {
  control_.set_plan("cufile_mode=compat");
  const auto demanded = load();
  ASSERT_FALSE(demanded.ok());
  EXPECT_EQ(demanded.error().code(), ErrorCode::unsupported);
  EXPECT_THAT(demanded.error().to_string(), HasSubstr("no GDS"));
  book_.emplace(0);
  environment_.gds = &*book_;
  options_.gds = Gds::automatic;
  const Loaded loaded = load().value();
  repository_.expect_equal(loaded);
  EXPECT_EQ(loaded.report.gds_bytes, 0U);
  EXPECT_EQ(loaded.report.files[0].mode, "direct");
  EXPECT_THAT(loaded.report.files[0].reason, HasSubstr("no GDS"));
}

TEST_F(GdsLoad, AutomaticMeasuresBothWaysOnceAndRemembersTheWinner) {
  book_.emplace(0);
  environment_.gds = &*book_;
  options_.gds = Gds::automatic;
  options_.memory = 3 * kMiB;  // small slots, for small files
  const Loaded first = load().value();
  repository_.expect_equal(first);
  EXPECT_THAT(first.report.files[0].reason, HasSubstr("as probed"));
  EXPECT_EQ(first.report.files[0].mode == "gds", first.report.gds_bytes > 0);
  const std::uint64_t reads = control_.counter("cufile_reads");
  EXPECT_GT(reads, 0U);
  const Loaded second = load().value();
  repository_.expect_equal(second);
  EXPECT_EQ(second.report.files[0].reason, first.report.files[0].reason);
  if (first.report.gds_bytes == 0) {
    EXPECT_EQ(control_.counter("cufile_reads"), reads);
  }
}

TEST_F(GdsLoad, SmallLoadsDoNotOpenCuFile) {
  options_.gds = Gds::automatic;
  const Loaded loaded = load().value();
  EXPECT_EQ(control_.counter("calls:cuFileDriverOpen"), 0U);
  EXPECT_THAT(loaded.report.files[0].reason, HasSubstr("does not pay"));
}

TEST_F(GdsLoad, ReadsThatCuFileRefusesGoThroughTheHostWithTheReason) {
  for (const char* const fault : {"cuFileRead:2=5016", "cuFileRead:1=EIO", "cuFileRead:*=EINVAL"}) {
    control_.set_plan(std::string("delay_us=0..300 seed=4 ") + fault);
    const Loaded loaded = load().value();
    repository_.expect_equal(loaded);
    EXPECT_THAT(loaded.report.files[0].reason + loaded.report.files[1].reason, HasSubstr("through host memory"));
  }
}

TEST_F(GdsLoad, ShortReadsAreResumed) {
  control_.set_plan("cuFileRead:1=short cuFileRead:2=short:5000 cuFileRead:4=short:4096");
  const Loaded loaded = load().value();
  repository_.expect_equal(loaded);
}

TEST_F(GdsLoad, ARingThatCannotBeRegisteredIsANotice) {
  control_.set_plan("cuFileBufRegister:1=5016");
  const Loaded loaded = load().value();
  repository_.expect_equal(loaded);
  EXPECT_THAT(loaded.report.notices, ::testing::Contains(HasSubstr("5016")));
}

TEST_F(GdsLoad, VerificationNeedsTheHost) {
  seal();
  options_.verify = Verify::always;
  const auto loaded = load();
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code(), ErrorCode::invalid_argument);
}

TEST_F(GdsLoad, ASealIsCheckedOnTheHostUnlessGdsWasDemanded) {
  seal();
  book_.emplace(0);
  environment_.gds = &*book_;
  options_.gds = Gds::automatic;
  Loaded loaded = load().value();
  EXPECT_EQ(loaded.report.files[0].verification, "seal");
  EXPECT_THAT(loaded.report.files[0].reason, HasSubstr("seal is checked on the host"));
  repository_.expect_equal(loaded);
  options_.gds = Gds::always;
  loaded = load().value();
  EXPECT_EQ(loaded.report.files[0].mode, "gds");
  repository_.expect_equal(loaded);
}

TEST_F(GdsLoad, AFailureOfAnyCallEndsInRightBytesOrOneError) {
  ASSERT_TRUE(load().ok());
  unsigned failed = 0;
  for (int nth = 1; nth < 3000; nth += nth < 60 ? 1 : 7) {
    book_.emplace();
    environment_.gds = &*book_;
    control_.set_plan("any:" + std::to_string(nth) + "=CUDA_ERROR_UNKNOWN");
    const std::uint64_t injected = control_.counter("faults_injected");
    auto loaded = load();
    const bool hit = control_.counter("faults_injected") > injected;
    control_.set_plan("");
    if (loaded.ok()) {
      repository_.expect_equal(*loaded);
    } else {
      ++failed;
      ASSERT_FALSE(loaded.error().message().empty());
    }
    loaded = Error(ErrorCode::cancelled, "");
    book_.reset();
    control_.finish();
    ASSERT_EQ(control_.counter("live"), 0U) << nth;
    if (!hit) {
      EXPECT_GT(failed, 10U);
      return;
    }
  }
  FAIL() << "every load was hit";
}

}  // namespace
}  // namespace infercluster::load
