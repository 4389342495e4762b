// SPDX-License-Identifier: Apache-2.0
// Checkpointers with a fast tier above their root.
#include "checkpoint/fast_tier.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <future>
#include <utility>

#include "base/log.h"
#include "checkpoint/names.h"
#include "checkpoint/saved_test_helpers.h"
#include "testing/fault_files.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::Memory;
using testing::FaultFiles;
using testing::FileFault;

Memory rank_memory(int rank, int world, std::uint64_t seed) {
  Memory memory;
  for (const Piece& piece : test::mesh_pieces(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(world)))
    memory.add(piece, seed);
  return memory;
}

// One rank of a job, in a thread.
struct RankOfJob {
  Checkpointer& checkpointer;
  int rank = 0;
  int world = 1;

  std::shared_ptr<const Save> save(std::uint64_t step, std::uint64_t seed, Exists exists = Exists::error) const {
    const Memory memory = rank_memory(rank, world, seed);
    const auto saved = checkpointer.save(step, memory.state(), {.exists = exists});
    EXPECT_TRUE(saved.ok()) << saved.error().to_string();
    return saved.ok() ? *saved : nullptr;
  }
  // What is wrong with a load of this step; empty: it has the bytes of `seed`, from the place of `kind`.
  std::string problem(std::optional<std::uint64_t> step, std::uint64_t seed, LoadPlace::Kind kind,
                      std::string* notice = nullptr) const {
    const auto place = checkpointer.choose(step);
    if (!place.ok()) return place.error().to_string();
    if (!place->has_value()) return "there is no such step";
    if (notice != nullptr) *notice = (*place)->notice;
    if ((*place)->kind != kind) return "it is read from the other tier: " + (*place)->notice;
    const auto checkpoint = checkpointer.open_place(**place);
    if (!checkpoint.ok()) return checkpoint.error().to_string();
    Memory memory = rank_memory(rank, world, 0);
    memory.overwrite();
    const auto report = checkpointer.restore(**checkpoint, memory.targets(), {});
    return report.ok() ? memory.difference(seed) : report.error().to_string();
  }
};

class FastTierTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directory(root()); }
  void TearDown() override { set_log_level(LogLevel::warning); }

  std::string root() const { return temp_.file("root"); }
  // `node`: ranks of one number share storage.
  std::string fast(int node = 0) const { return temp_.file("fast-" + std::to_string(node)); }

  using Body = std::function<void(const RankOfJob&)>;
  void run(int world, const Body& body, const std::function<void(int rank, Options&)>& adapt = {}) const {
    const auto store = std::make_shared<exchange::MemoryStore>();
    exchange::run_ranks(exchange::ranks_of(world), [&](int rank) {
      auto ranks = exchange::open_over_store(store, {rank, world}, exchange::deadline_in(std::chrono::seconds(60)));
      ASSERT_TRUE(ranks.ok()) << ranks.error().to_string();
      Options options;
      options.exchange = ranks->get();
      options.call_deadline = options.write_deadline = std::chrono::seconds(60);
      options.fast = FastTier{.path = fast(), .extent_bytes = manifest::kBlockBytes};
      if (adapt) adapt(rank, options);
      auto checkpointer = Checkpointer::open(root(), options);
      ASSERT_TRUE(checkpointer.ok()) << checkpointer.error().to_string();
      body({**checkpointer, rank, world});
      (*checkpointer)->wait_idle();
    });
  }
  // Whether the root alone has these bytes.
  bool root_holds(std::uint64_t step, std::uint64_t seed) const {
    const auto checkpoint = Checkpoint::open(io::system_files(), root(), step);
    if (!checkpoint.ok()) return false;
    Memory memory = rank_memory(0, 1, 0);
    memory.overwrite();
    return (*checkpoint)->restore(memory.targets(), {}).ok() && memory.difference(seed).empty();
  }
  // Saves a step of which the root refuses every segment: it stays on the fast tiers, with its mark at the root.
  void save_and_leave(int world, std::uint64_t step, std::uint64_t seed,
                      const std::function<void(int rank, Options&)>& adapt = {}) const {
    set_log_level(LogLevel::off);
    FaultFiles faulty([&](std::uint64_t, std::string_view call, const std::string& path) {
      const bool refused = call == "create" && path.starts_with(root()) && path.ends_with(".safetensors");
      return FileFault{.error = refused ? EIO : 0};
    });
    run(
        world,
        [&](const RankOfJob& job) {
          const auto save = job.save(step, seed);
          ASSERT_NE(save, nullptr);
          EXPECT_TRUE(save->wait(Tier::fast).ok());
          const Status failed = save->wait();
          ASSERT_FALSE(failed.ok());
          EXPECT_NE(failed.error().hint().find("stays on the fast tier"), std::string::npos)
              << failed.error().to_string();
          EXPECT_EQ(save->status(), SaveStatus::failed);
          EXPECT_EQ(save->status_on(Tier::fast), TierStatus::durable);
          EXPECT_EQ(save->status_on(Tier::root), TierStatus::failed);
        },
        [&](int rank, Options& options) {
          options.calls = &faulty;
          if (adapt) adapt(rank, options);
        });
    EXPECT_FALSE(root_holds(step, seed));
    set_log_level(LogLevel::warning);
  }

  testing::TempDir temp_;
};

TEST_F(FastTierTest, FourRanksOfANodeSaveToBothTiersAndLoadFromTheFastOne) {
  run(4, [&](const RankOfJob& job) {
    const auto save = job.save(5, 7);
    ASSERT_NE(save, nullptr);
    const Status durable = save->wait();
    ASSERT_TRUE(durable.ok()) << durable.error().to_string();
    EXPECT_EQ(job.problem(std::nullopt, 7, LoadPlace::Kind::fast), "");
    EXPECT_EQ(job.problem(5, 7, LoadPlace::Kind::fast), "");
  });
  EXPECT_TRUE(root_holds(5, 7));
  fs::remove_all(fast());
  run(3, [](const RankOfJob& job) {
    std::string notice;
    EXPECT_EQ(job.problem(std::nullopt, 7, LoadPlace::Kind::root, &notice), "");
    EXPECT_NE(notice.find("no fast tier has this step"), std::string::npos) << notice;
  });
}

TEST_F(FastTierTest, ASaveIsFastBeforeItIsDurable) {
  std::promise<void> go_on;
  std::shared_future<void> gate = go_on.get_future().share();
  FaultFiles gated([&](std::uint64_t, std::string_view call, const std::string& path) {
    if (call == "create" && path.starts_with(root()) && path.ends_with(".safetensors")) gate.wait();
    return FileFault{};
  });
  run(
      1,
      [&](const RankOfJob& job) {
        const auto save = job.save(5, 7);
        ASSERT_NE(save, nullptr);
        ASSERT_TRUE(save->wait(Tier::fast).ok());
        EXPECT_EQ(save->status(), SaveStatus::fast);
        EXPECT_EQ(save->status_on(Tier::fast), TierStatus::durable);
        EXPECT_EQ(save->status_on(Tier::root), TierStatus::pending);
        EXPECT_FALSE(save->wait_for(std::chrono::milliseconds(1)));
        go_on.set_value();
        ASSERT_TRUE(save->wait().ok());
        EXPECT_EQ(save->status(), SaveStatus::durable);
        EXPECT_GT(save->report().fast_seconds, 0);
        EXPECT_EQ(save->report().bytes_drained, save->report().bytes);
      },
      [&](int, Options& options) { options.calls = &gated; });
}

TEST_F(FastTierTest, ADrainThatFailedIsDoneByTheNextJob) {
  save_and_leave(3, 5, 7);
  run(3, [](const RankOfJob& job) { EXPECT_EQ(job.problem(std::nullopt, 7, LoadPlace::Kind::fast), ""); });
  EXPECT_TRUE(root_holds(5, 7));
}

TEST_F(FastTierTest, AJobOfAnotherSizeGoesOnWithTheDrainOfAllParts) {
  save_and_leave(4, 5, 7);
  run(2, [](const RankOfJob& job) { EXPECT_EQ(job.problem(5, 7, LoadPlace::Kind::fast), ""); });
  EXPECT_TRUE(root_holds(5, 7));
}

// Ranks on nodes of their own do not see each other's parts: what waits for the root is waited for, and read there.
TEST_F(FastTierTest, RanksOfSeveralNodesLoadFromTheRootOnceItIsThere) {
  const auto own_node = [this](int rank, Options& options) { options.fast->path = fast(rank); };
  save_and_leave(2, 5, 7, own_node);
  run(
      2,
      [](const RankOfJob& job) {
        std::string notice;
        EXPECT_EQ(job.problem(std::nullopt, 7, LoadPlace::Kind::root, &notice), "");
        EXPECT_NE(notice.find("does not have all parts of step 5"), std::string::npos) << notice;
      },
      own_node);
  EXPECT_TRUE(root_holds(5, 7));
}

TEST_F(FastTierTest, APartThatIsLostWithItsNodeMeansAnEarlierStepAndIsTold) {
  const auto own_node = [this](int rank, Options& options) { options.fast->path = fast(rank); };
  run(
      2, [](const RankOfJob& job) { EXPECT_TRUE(job.save(4, 6)->wait().ok()); }, own_node);
  save_and_leave(2, 5, 7, own_node);
  fs::remove_all(fast(1));
  set_log_level(LogLevel::off);
  run(
      2,
      [](const RankOfJob& job) {
        std::string notice;
        EXPECT_EQ(job.problem(std::nullopt, 6, LoadPlace::Kind::root, &notice), "");
        EXPECT_NE(notice.find("step 5, which was not durable at the root"), std::string::npos) << notice;
        EXPECT_TRUE(job.save(5, 8)->wait().ok());
      },
      own_node);
  EXPECT_TRUE(root_holds(5, 8));
}

TEST_F(FastTierTest, AFullFastTierFailsTheSaveOnAllRanksAndLeavesNothing) {
  set_log_level(LogLevel::off);
  std::atomic<bool> full{false};
  FaultFiles faulty([&](std::uint64_t, std::string_view call, const std::string& path) {
    return FileFault{.error = full && call == "write" && path.starts_with(fast() + "/rank-1/") ? ENOSPC : 0};
  });
  run(
      2,
      [&](const RankOfJob& job) {
        EXPECT_TRUE(job.save(4, 6)->wait().ok());
        full = true;
        const auto save = job.save(5, 7);
        ASSERT_NE(save, nullptr);
        const Status failed = save->wait(Tier::fast);
        ASSERT_FALSE(failed.ok());
        EXPECT_EQ(failed.error().system_errno(), ENOSPC);
        EXPECT_NE(failed.error().to_string().find("keep fewer checkpoints on this tier"), std::string::npos)
            << failed.error().to_string();
        EXPECT_EQ(save->status_on(Tier::fast), TierStatus::failed);
        EXPECT_FALSE(save->wait().ok());
        job.checkpointer.wait_idle();
        EXPECT_FALSE(fs::exists(fast() + "/" + rank_name(static_cast<std::uint64_t>(job.rank)) + "/step-5"));
        EXPECT_EQ(job.problem(std::nullopt, 6, LoadPlace::Kind::fast), "");
      },
      [&](int, Options& options) { options.calls = &faulty; });
  EXPECT_FALSE(fs::exists(root() + "/step-5"));
}

TEST_F(FastTierTest, ASaveGoesToTheRootWhereOneRankCannotUseItsFastTier) {
  set_log_level(LogLevel::off);
  FaultFiles faulty([&](std::uint64_t, std::string_view call, const std::string& path) {
    return FileFault{.error = call == "make_directory" && path == fast() + "/rank-1/step-5" ? EIO : 0};
  });
  run(
      2,
      [&](const RankOfJob& job) {
        const auto save = job.save(5, 7);
        ASSERT_NE(save, nullptr);
        ASSERT_TRUE(save->wait().ok());
        EXPECT_EQ(save->report().fast, TierStatus::left_out);
        EXPECT_NE(save->report().notice.find("rank 1: "), std::string::npos) << save->report().notice;
        EXPECT_EQ(save->status_on(Tier::fast), TierStatus::durable) << "the root counts";
        EXPECT_EQ(job.problem(5, 7, LoadPlace::Kind::root), "");
        EXPECT_TRUE(job.save(6, 8)->wait().ok());
        EXPECT_EQ(job.problem(6, 8, LoadPlace::Kind::fast), "");
      },
      [&](int, Options& options) { options.calls = &faulty; });
  EXPECT_TRUE(root_holds(5, 7));
}

// Two may be on their way to the root when the next one begins.
TEST_F(FastTierTest, ASaveWaitsForEarlierOnesThatAreNotAtTheRoot) {
  run(
      1,
      [](const RankOfJob& job) {
        std::vector<std::shared_ptr<const Save>> saves;
        for (std::uint64_t step = 1; step <= 5; ++step) {
          saves.push_back(job.save(step, step));
          ASSERT_NE(saves.back(), nullptr);
          if (step <= 3) continue;
          EXPECT_TRUE(saves[step - 4]->wait_for(std::chrono::nanoseconds(0))) << step;
        }
        for (const auto& save : saves) EXPECT_TRUE(save->wait().ok());
      },
      [](int, Options& options) { options.max_write_rate = std::uint64_t{2} << 20; });
  EXPECT_TRUE(root_holds(5, 5));
}

TEST_F(FastTierTest, AWrongByteOnTheFastTierNeverComesToTheRoot) {
  save_and_leave(1, 5, 7);
  for (const auto& entry : fs::recursive_directory_iterator(fast())) {
    if (entry.path().extension() == ".safetensors") test::flip(entry.path().string(), 5000);
  }
  set_log_level(LogLevel::off);
  run(1, [](const RankOfJob& job) {
    job.checkpointer.wait_idle();
    EXPECT_EQ(*job.checkpointer.steps(), std::vector<std::uint64_t>{});
    EXPECT_NE(job.problem(5, 7, LoadPlace::Kind::fast), "");
  });
}

}  // namespace
}  // namespace infercluster::checkpoint
