// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <mutex>

#include "base/units.h"
#include "load/job.h"
#include "load/test_repository.h"
#include "os/limits.h"
#include "os/page_cache.h"
#include "testing/fault_backend.h"

namespace infercluster::load {
namespace {

using safetensors::Dtype;
using testing::Fault;
using testing::FaultBackend;
using ::testing::HasSubstr;

// A load under each kind of fault; whatever happens, either every byte is right, or there is one error and no tensor.
class JobFaultTest : public OnEachWay {
 protected:
  JobFaultTest() {
    repository_.add_file("a.safetensors", {tensor_of("x", Dtype::f32, {3000000}), tensor_of("y", Dtype::u8, {77777})},
                         5);
    repository_.add_file("b.safetensors", {tensor_of("z", Dtype::bf16, {1000, 1000})});
    options_.page_cache = PageCache::bypass;
  }

  void inject(FaultBackend::Plan plan) {
    environment_.open_backend = [plan](const io::BackendOptions& options) -> Result<io::ChosenBackend> {
      IC_TRY(io::ChosenBackend chosen, io::open_backend(options));
      chosen.backend = std::make_unique<FaultBackend>(std::move(chosen.backend), plan);
      return chosen;
    };
  }

  void make_cold() const {
    for (const char* file : {"a.safetensors", "b.safetensors"}) repository_.make_cold(file);
  }

  TestRepository repository_;
};

TEST_P(JobFaultTest, ShortReadsAreResumed) {
  for (const std::uint32_t most : {1U << 20, 4096U * 3, 512U * 7}) {
    inject([most](std::uint64_t number, const io::ReadOperation&) {
      return Fault{0, number % 3 == 2 ? 0 : most, false};
    });
    make_cold();
    const Loaded loaded = load(repository_.open()).value();
    repository_.expect_equal(loaded);
  }
}

TEST_P(JobFaultTest, InterruptionsAreRetried) {
  for (const int error : {EINTR, EAGAIN}) {
    inject([error](std::uint64_t number, const io::ReadOperation&) {
      return Fault{number % 2 == 0 ? -error : 0, 0, false};
    });
    const Loaded loaded = load(repository_.open()).value();
    repository_.expect_equal(loaded);
    EXPECT_GT(loaded.report.retries, 0U);
  }
}

TEST_P(JobFaultTest, AnErrorAtTheNthRequestIsOneErrorAndNoTensor) {
  for (std::uint64_t nth = 0; nth < 12; ++nth) {
    bool hit = false;
    inject([nth, &hit](std::uint64_t number, const io::ReadOperation&) {
      hit = hit || number == nth;
      return Fault{number == nth ? -EIO : 0, 0, false};
    });
    make_cold();
    const auto loaded = load(repository_.open());
    if (!hit) {
      EXPECT_GT(nth, 2U);
      repository_.expect_equal(loaded.value());
      break;
    }
    ASSERT_FALSE(loaded.ok()) << nth;
    EXPECT_EQ(loaded.error().code(), ErrorCode::io);
    EXPECT_EQ(loaded.error().system_errno(), EIO);
    EXPECT_THAT(loaded.error().path(), HasSubstr(".safetensors"));
    EXPECT_TRUE(loaded.error().offset().has_value());
    EXPECT_FALSE(loaded.error().tensor().empty());
  }
}

TEST_P(JobFaultTest, DirectReadsThatAreRefusedFallBackForThatFileAlone) {
  std::mutex mutex;
  int refused_fd = -1;
  make_cold();
  inject([&](std::uint64_t, const io::ReadOperation& operation) {
    const std::lock_guard lock(mutex);
    if ((::fcntl(operation.fd, F_GETFL) & O_DIRECT) == 0) return Fault{};
    if (refused_fd == -1) refused_fd = operation.fd;
    return Fault{operation.fd == refused_fd ? -EINVAL : 0, 0, false};
  });
  const Loaded loaded = load(repository_.open()).value();
  repository_.expect_equal(loaded);
  if (refused_fd == -1) GTEST_SKIP() << "no direct I/O here: " << loaded.report.files[0].reason;
  EXPECT_EQ(loaded.report.files[0].mode, "buffered");
  EXPECT_THAT(loaded.report.files[0].reason, HasSubstr("Invalid argument"));
  EXPECT_EQ(loaded.report.files[1].mode, "direct");
}

TEST_P(JobFaultTest, CancelAtAnyMomentEndsTheLoadAndFreesItsMemory) {
  for (std::uint64_t moment = 0; moment < 8; ++moment) {
    Job* running = nullptr;
    std::mutex mutex;
    std::condition_variable started;
    inject([&, moment](std::uint64_t number, const io::ReadOperation&) {
      std::unique_lock lock(mutex);
      started.wait(lock, [&] { return running != nullptr; });
      if (number == moment) running->cancel();
      return Fault{};
    });
    make_cold();
    auto job = Job::start(repository_.open(), options_, environment_).value();
    {
      const std::lock_guard lock(mutex);
      running = job.get();
    }
    started.notify_all();
    const auto loaded = job->finish();
    if (loaded.ok()) {
      repository_.expect_equal(*loaded);  // it was done before
    } else {
      EXPECT_EQ(loaded.error().code(), ErrorCode::cancelled);
    }
  }
}

TEST_P(JobFaultTest, AFileThatIsCutUnderTheLoadIsAnErrorNotASignal) {
  const std::string path = repository_.path("a.safetensors");
  bool cut = false;
  inject([&](std::uint64_t number, const io::ReadOperation&) {
    if (number == 1 && !cut) {
      cut = true;
      std::filesystem::resize_file(path, 4096);
    }
    return Fault{};
  });
  const auto opened = repository_.open();
  const auto loaded = load(opened);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code(), ErrorCode::changed);
  EXPECT_EQ(loaded.error().path(), path);
}

TEST_P(JobFaultTest, AFileThatIsRewrittenUnderTheLoadIsAnErrorNotAMixture) {
  const std::string path = repository_.path("b.safetensors");
  inject([&](std::uint64_t number, const io::ReadOperation&) {
    if (number == 0) {
      const Fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
      EXPECT_EQ(::pwrite(fd.get(), "changed!", 8, 500000), 8);
    }
    return Fault{};
  });
  const auto loaded = load(repository_.open());
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code(), ErrorCode::changed);
  EXPECT_EQ(loaded.error().path(), path);
}

INSTANTIATE_TEST_SUITE_P(Ways, JobFaultTest, every_way(), way_name);

}  // namespace
}  // namespace infercluster::load
