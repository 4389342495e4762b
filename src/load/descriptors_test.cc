// SPDX-License-Identifier: Apache-2.0
// How many files a load has open: one for each shard, and a bounded number for direct reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "io/source.h"
#include "load/test_repository.h"
#include "testing/fault_backend.h"
#include "testing/few_descriptors.h"

namespace infercluster::load {
namespace {

namespace fs = std::filesystem;
using testing::Fault;
using testing::FaultBackend;
using testing::FewDescriptors;
using ::testing::HasSubstr;

std::size_t open_descriptors() {
  const fs::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all))) - 1;  // less the directory's own
}

class DescriptorsTest : public OnEachWay {
 protected:
  static constexpr std::size_t kShards = 300;
  static constexpr std::size_t kDirectMost = 64;  // transfers that the engine takes at once
  static constexpr std::size_t kEngineOwn = 8;    // rings and wake-ups

  DescriptorsTest() {
    for (std::size_t i = 0; i < kShards; ++i) {
      const std::string number = std::to_string(i);
      repository_.add_file(number + ".safetensors", {tensor_of(number, safetensors::Dtype::u8, {5000})});
    }
    options_.page_cache = PageCache::bypass;
    options_.direct = io::DirectPolicy::always;  // reading their headers makes such small files resident
  }

  TestRepository repository_;
};

TEST_P(DescriptorsTest, DirectReadsOfManyFilesHoldFewMore) {
  const std::size_t before = open_descriptors();
  std::size_t most = 0;
  environment_.open_backend = [&most](const io::BackendOptions& options) -> Result<io::ChosenBackend> {
    IC_TRY(io::ChosenBackend chosen, io::open_backend(options));
    chosen.backend =
        std::make_unique<FaultBackend>(std::move(chosen.backend), [&most](std::uint64_t, const io::ReadOperation&) {
          most = std::max(most, open_descriptors());
          return Fault{};
        });
    return chosen;
  };
  auto loaded = load(repository_.open());
  if (!loaded.ok() && loaded.error().code() == ErrorCode::unsupported) GTEST_SKIP() << loaded.error().to_string();
  repository_.expect_equal(loaded.value());
  EXPECT_LE(most, before + kShards + kDirectMost + kEngineOwn);
}

TEST_P(DescriptorsTest, AJobThatIsKeptForItsPageCacheHoldsNone) {
  io::Governor governor(steady_clock(), {.foreground = 0, .fill = 1, .drain = 0});
  PageCacheFiller filler(&governor);
  environment_.filler = &filler;
  options_.page_cache = PageCache::keep;
  const std::size_t before = open_descriptors();
  auto job = Job::start(repository_.open(), options_, environment_);
  if (!job.ok() && job.error().code() == ErrorCode::unsupported) GTEST_SKIP() << job.error().to_string();
  repository_.expect_equal((*job)->finish().value());
  EXPECT_FALSE((*job)->wait_for_page_cache(std::chrono::nanoseconds(0)));
  EXPECT_LE(open_descriptors(), before + kEngineOwn);
  (*job)->cancel();
  EXPECT_EQ((*job)->progress().bytes_done, (*job)->progress().bytes_total);
}

TEST_P(DescriptorsTest, TooFewForDirectReadsThatWereDemandedAreOneErrorWithTheLimit) {
  static_cast<void>(load(repository_.open()));  // UBSan opens a pipe whenever a type is new to it
  std::optional<FewDescriptors> few;
  environment_.open_backend = [&few](const io::BackendOptions& options) -> Result<io::ChosenBackend> {
    IC_TRY(io::ChosenBackend chosen, io::open_backend(options));
    few.emplace(0);
    return chosen;
  };
  options_.verify = Verify::never;  // looking for a seal takes a descriptor too
  const auto loaded = load(repository_.open());
  few.reset();
  ASSERT_FALSE(loaded.ok());
  if (loaded.error().code() == ErrorCode::unsupported) GTEST_SKIP() << loaded.error().to_string();
  EXPECT_EQ(loaded.error().system_errno(), EMFILE) << loaded.error().to_string();
  EXPECT_THAT(loaded.error().to_string(), HasSubstr("ulimit -n"));
}

TEST_P(DescriptorsTest, TooFewForTheShardsAreOneErrorWithTheLimit) {
  const FewDescriptors few(kShards / 2);
  const auto repository = open_repository(repository_.path());
  ASSERT_FALSE(repository.ok());
  EXPECT_EQ(repository.error().system_errno(), EMFILE);
  EXPECT_THAT(repository.error().to_string(), HasSubstr("Too many open files. This process may have"));
  EXPECT_THAT(repository.error().to_string(), HasSubstr("ulimit -n"));
}

INSTANTIATE_TEST_SUITE_P(Ways, DescriptorsTest, every_way(), way_name);

}  // namespace
}  // namespace infercluster::load
