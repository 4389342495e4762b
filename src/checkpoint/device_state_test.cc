// SPDX-License-Identifier: Apache-2.0
// What is particular to state on devices: how often a byte is copied, whose work comes before whose, and what becomes
// of a save or a restore when the driver fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "base/log.h"
#include "base/units.h"
#include "checkpoint/checkpoint_test_helpers.h"
#include "checkpoint/part_saver.h"
#include "exchange/exchange_test_helpers.h"
#include "gpu/stream.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

using test::Dtype;
using test::Memory;
using test::whole;
using ::testing::HasSubstr;

class DeviceState : public ::testing::Test {
 public:
  ~DeviceState() override { test::device_of_state() = -1; }

 protected:
  DeviceState() {
    test::device_of_state() = 1;
    control_.reset();
    control_.set_plan("delay_us=0..500 seed=3");
  }
  void TearDown() override {
    control_.set_plan("");
    control_.finish();
    EXPECT_EQ(control_.counter("violations"), 0U);
    EXPECT_EQ(control_.counter("live"), 0U);
  }

  [[nodiscard]] Memory model(std::uint64_t seed) const {
    Memory memory;
    memory.add(whole("w", Dtype::f32, {400 / parts_, 300}), seed);
    memory.add(whole("b", Dtype::bf16, {7, 11, 13}), seed);
    memory.add(whole("flags", Dtype::u8, {300'001 / parts_}), seed);
    return memory;
  }
  std::unique_ptr<Checkpointer> open(const Options& options = {}) {
    return std::move(Checkpointer::open(temp_.path().string(), options)).value();
  }
  // What keeps the step from being loaded to the host with the bytes of `seed`; empty: nothing.
  std::string problem(std::uint64_t step, std::uint64_t seed) {
    test::device_of_state() = -1;
    Memory memory = model(0);
    test::device_of_state() = 1;
    memory.overwrite();
    auto checkpoint = Checkpoint::open(io::system_files(), temp_.path().string(), step);
    if (!checkpoint.ok()) return checkpoint.error().to_string();
    const auto report = (*checkpoint)->restore(memory.targets(), {});
    return report.ok() ? memory.difference(seed) : report.error().to_string();
  }
  [[nodiscard]] Memory on_host(std::uint64_t seed) const {
    test::device_of_state() = -1;
    Memory memory = model(seed);
    test::device_of_state() = 1;
    return memory;
  }
  // Queues bytes over all of the state.
  static void queue_overwrite(const State& state, const gpu::Stream& stream, unsigned char value) {
    const auto current = gpu::Device::Current::make(*stream.device()).value();
    for (const HostPiece& piece : state.pieces) {
      ASSERT_EQ(stream.device()->api().cuMemsetD8Async(reinterpret_cast<std::uintptr_t>(piece.data), value,
                                                       *check_piece(piece.piece), stream.handle()),
                gpu::CuResult::success);
    }
  }
  static std::unique_ptr<gpu::Stream> make_stream() {
    return gpu::Stream::create(gpu::Device::open(1).value()).value();
  }

  std::uint64_t parts_ = 1;  // the model is smaller by
  gpu_double::Control control_;
  testing::TempDir temp_;
};

TEST_F(DeviceState, EachByteIsCopiedOnceFromPinnedMemoryThatIsKept) {
  const Memory memory = model(1);
  std::uint64_t bytes = 0;
  for (const HostPiece& piece : memory.state().pieces) bytes += *check_piece(piece.piece);
  const std::uint64_t copied = control_.counter("device_to_host_bytes");
  const std::uint64_t pageable = control_.counter("pageable_copies");
  const std::uint64_t pinned = control_.counter("registrations_made");
  {
    auto checkpointer = open();
    for (std::uint64_t step = 1; step <= 4; ++step) ASSERT_TRUE(checkpointer->save(step, memory.state(), {}).ok());
    checkpointer->wait_idle();
    EXPECT_EQ(control_.counter("device_to_host_bytes") - copied, 4 * bytes);
    EXPECT_EQ(control_.counter("pageable_copies"), pageable);
    EXPECT_LE(control_.counter("registrations_made") - pinned, 2U);
    EXPECT_EQ(control_.counter("contexts_created:0"), 0U);
    EXPECT_EQ(control_.counter("streams"), 0U);
  }
  EXPECT_EQ(control_.counter("registrations"), 0U);
  EXPECT_EQ(problem(4, 1), "");
  Memory restored = model(0);
  const std::uint64_t pageable_before = control_.counter("pageable_copies");
  const std::uint64_t before = control_.counter("host_to_device_bytes");
  auto checkpoint = Checkpoint::open(io::system_files(), temp_.path().string(), 4);
  ASSERT_TRUE((*checkpoint)->restore(restored.targets(), {}).ok());
  EXPECT_EQ(control_.counter("host_to_device_bytes") - before, bytes);
  EXPECT_EQ(control_.counter("pageable_copies"), pageable_before);
  EXPECT_EQ(restored.difference(1), "");
}

TEST_F(DeviceState, PreparedMemoryIsPinnedAhead) {
  const Memory memory = model(1);
  auto checkpointer = open();
  ASSERT_TRUE(checkpointer->prepare(4 * kMiB, 1).ok());
  const std::uint64_t pinned = control_.counter("registrations_made");
  EXPECT_EQ(pinned, 2U);
  ASSERT_TRUE(checkpointer->save(1, memory.state(), {.wait = Wait::until_durable}).ok());
  EXPECT_EQ(control_.counter("registrations_made"), pinned);
}

TEST_F(DeviceState, CopiesBeginBehindWhatTheCallersStreamHasQueued) {
  const Memory memory = model(1);
  State state = memory.state();
  const auto stream = make_stream();
  for (int i = 0; i < 20; ++i) queue_overwrite(state, *stream, i == 19 ? 0x77 : 0x11);
  state.streams = {{1, reinterpret_cast<std::uintptr_t>(stream->handle())}};
  auto checkpointer = open();
  ASSERT_TRUE(checkpointer->save(1, state, {.wait = Wait::until_durable}).ok());
  Memory loaded = model(0);
  auto checkpoint = Checkpoint::open(io::system_files(), temp_.path().string(), 1);
  // What was queued before a restore does not come over it.
  const State target = loaded.state();
  for (int i = 0; i < 20; ++i) queue_overwrite(target, *stream, 0x22);
  RestoreOptions options;
  options.streams = state.streams;
  ASSERT_TRUE((*checkpoint)->restore(loaded.targets(), options).ok());
  ASSERT_TRUE(stream->wait().ok());
  for (const HostPiece& piece : target.pieces) {
    std::vector<std::byte> bytes(*check_piece(piece.piece));
    ASSERT_TRUE(control_.read(reinterpret_cast<std::uintptr_t>(piece.data), bytes));
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{0x77}), static_cast<std::ptrdiff_t>(bytes.size()));
  }
}

TEST_F(DeviceState, AQueuedSaveReturnsAtOnceAndLaterWorkOfTheStreamWaitsForIt) {
  const Memory memory = model(1);
  State state = memory.state();
  const auto stream = make_stream();
  state.streams = {{1, reinterpret_cast<std::uintptr_t>(stream->handle())}};
  auto checkpointer = open();
  control_.hold();  // no copy begins
  const auto save = checkpointer->save(1, state, {.wait = Wait::until_queued});
  ASSERT_TRUE(save.ok()) << save.error().to_string();
  EXPECT_EQ((*save)->status(), SaveStatus::scheduled);
  queue_overwrite(state, *stream, 0x99);
  control_.release();
  ASSERT_TRUE((*save)->wait_until_staged().ok());
  EXPECT_GE((*save)->status(), SaveStatus::staged);
  ASSERT_TRUE((*save)->wait().ok());
  EXPECT_EQ(problem(1, 1), "");
  ASSERT_TRUE(stream->wait().ok());
  EXPECT_NE(memory.difference(1), "");  // the overwriting did come
}

TEST_F(DeviceState, IsAPartThatIsSavedInADirectoryOfAnyNameToo) {
  const Memory memory = model(1);
  const std::string directory = temp_.file("step-1");
  std::filesystem::create_directory(directory);
  PartSaver saver({.buffer_bytes = 4 * 64 * kKiB});
  const SaveTicket ticket = saver.begin(directory, Exists::error).value();
  const SavedPart part = saver.write(directory, ticket, 0, 1, memory.state()).value();
  Pieces held;
  for (const HostPiece& piece : memory.state().pieces) held.push_back(piece.piece);
  ASSERT_TRUE(saver.commit(directory, ticket, 1, {part.index}, held).ok());
  Memory loaded = model(0);
  auto checkpoint =
      Checkpoint::open_directory(io::system_files(), io::system_files().open_directory(directory).value());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
  ASSERT_TRUE((*checkpoint)->restore(loaded.targets(), {}).ok());
  EXPECT_EQ(loaded.difference(1), "");
}

TEST_F(DeviceState, LargerThanTheArenaGoesInWavesQueuedOrNot) {
  Options options;
  options.arena_bytes = 4 * 64 * kKiB;
  auto checkpointer = open(options);
  const auto stream = make_stream();
  std::uint64_t step = 0;
  for (const Wait wait : {Wait::until_staged, Wait::until_queued}) {
    const Memory memory = model(5);
    State state = memory.state();
    state.streams = {{1, reinterpret_cast<std::uintptr_t>(stream->handle())}};
    const auto save = checkpointer->save(++step, state, {.wait = wait});
    ASSERT_TRUE(save.ok()) << save.error().to_string();
    queue_overwrite(state, *stream, 0x31);
    ASSERT_TRUE((*save)->wait().ok());
    EXPECT_GT((*save)->report().waves, 4U);
    EXPECT_EQ(problem(step, 5), "");
    ASSERT_TRUE(stream->wait().ok());
  }
}

TEST_F(DeviceState, OfTwoDevicesAndTheHostIsOneCheckpoint) {
  std::vector<Memory> parts;
  State state;
  for (const int device : {-1, 0, 1}) {
    test::device_of_state() = device;
    parts.emplace_back().add(whole("of " + std::to_string(device), Dtype::f32, {50'000}), 4);
    for (const HostPiece& piece : parts.back().state().pieces) state.pieces.push_back(piece);
  }
  auto checkpointer = open();
  ASSERT_TRUE(checkpointer->save(1, state, {.wait = Wait::until_durable}).ok());
  std::vector<Target> targets;
  for (Memory& part : parts) {
    part.overwrite();
    for (const Target& target : part.targets()) targets.push_back(target);
  }
  auto checkpoint = Checkpoint::open(io::system_files(), temp_.path().string(), 1);
  const auto report = (*checkpoint)->restore(targets, {});
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  for (const Memory& part : parts) EXPECT_EQ(part.difference(4), "");
}

TEST_F(DeviceState, ColumnsAreRowsOfOneCopyAndWhatLiesOtherwiseIsRefusedByName) {
  Memory memory;
  memory.add(whole("w", Dtype::f32, {100, 64}), 1);
  State state = memory.state();
  state.pieces[0].piece.shape = {100, 16};
  state.pieces[0].piece.box = manifest::whole_box({100, 16});
  state.pieces[0].data += 32 * 4;  // columns 32 to 47
  state.pieces[0].strides = {64 * 4, 4};
  auto checkpointer = open();
  const auto save = checkpointer->save(1, state, {.wait = Wait::until_durable});
  ASSERT_TRUE(save.ok()) << save.error().to_string();
  test::device_of_state() = -1;
  Memory loaded;
  loaded.add(state.pieces[0].piece, 0);
  auto checkpoint = Checkpoint::open(io::system_files(), temp_.path().string(), 1);
  ASSERT_TRUE((*checkpoint)->restore(loaded.targets(), {}).ok());
  const std::byte* bytes = loaded.targets()[0].data;
  for (std::uint64_t i = 0; i < 6400; ++i) ASSERT_EQ(bytes[i], test::byte_of("w", 1, i / 64 * 256 + 128 + i % 64)) << i;
  // Back into columns.
  std::vector<Target> target{{state.pieces[0].piece, memory.targets()[0].data, {64 * 4, 4}, 1}};  // columns 0 to 15
  ASSERT_TRUE((*checkpoint)->restore(target, {}).ok());
  std::vector<std::byte> all(25'600);
  ASSERT_TRUE(control_.read(reinterpret_cast<std::uintptr_t>(memory.targets()[0].data), all));
  for (std::uint64_t i = 0; i < all.size(); ++i) {
    const std::uint64_t column = i % 256;
    ASSERT_EQ(all[i], test::byte_of("w", 1, column < 64 ? i + 128 : i)) << i;
  }
  state.pieces[0].strides = {4, 400};
  const auto refused = checkpointer->save(2, state, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().tensor(), "w");
  EXPECT_THAT(refused.error().hint(), HasSubstr("contiguous()"));
  target[0].strides = {4, 400};
  EXPECT_EQ((*checkpoint)->restore(target, {}).error().tensor(), "w");
}

// Two ranks that save together: rank 1 from device 1, rank 0 from the host, so that all calls of the driver are rank
// 1's.
std::vector<std::string> save_by_two(const std::string& root, std::uint64_t step, const Memory& memory,
                                     const Memory& on_host) {
  std::vector<std::string> said(2);
  const auto store = std::make_shared<exchange::MemoryStore>();
  exchange::run_ranks({0, 1}, [&](int rank) {
    auto ranks = exchange::open_over_store(store, {rank, 2}, exchange::deadline_in(std::chrono::seconds(60)));
    ASSERT_TRUE(ranks.ok());
    Options options;
    options.exchange = ranks->get();
    options.retention.keep = 0;
    options.arena_bytes = 2 * 64 * kKiB;  // two waves
    auto checkpointer = Checkpointer::open(root, options);
    ASSERT_TRUE(checkpointer.ok());
    State state;  // halves of each tensor
    for (const HostPiece& source : (rank == 0 ? on_host : memory).state().pieces) {
      HostPiece half = source;
      const std::uint64_t length = half.piece.shape[0] / 2;
      const std::uint64_t row = *check_piece(half.piece) / half.piece.shape[0];
      half.piece.box.offsets[0] = rank == 0 ? 0 : length;
      half.piece.box.lengths[0] = rank == 0 ? length : half.piece.shape[0] - length;
      half.data += half.piece.box.offsets[0] * row;
      state.pieces.push_back(std::move(half));
    }
    const Wait wait = step % 2 == 0 ? Wait::until_queued : Wait::until_staged;
    const auto save = (*checkpointer)->save(step, state, {.wait = wait});
    const Status done = save.ok() ? (*save)->wait() : Status(save.error());
    said[static_cast<std::size_t>(rank)] = done.ok() ? "durable" : done.error().to_string();
    (*checkpointer)->wait_idle();
  });
  return said;
}

class DeviceFaults : public DeviceState {
 protected:
  void SetUp() override {
    parts_ = 5;
    set_log_level(LogLevel::off);
  }
  void TearDown() override {
    set_log_level(LogLevel::warning);
    DeviceState::TearDown();
  }

  // `body` with each call of `form` failing in turn, until it makes fewer. What it returns: the error; empty: none.
  void fail_each(const std::string& form, const std::function<std::string(const Memory&)>& body,
                 const std::function<void(bool)>& check) {
    int failures = 0;
    for (int nth = 1; nth < 2000; ++nth) {
      std::uint64_t injected = 0;
      bool failed = false;
      bool hit = false;
      {
        const Memory memory = model(2);
        control_.set_plan("delay_us=0..100, " + form + ":" + std::to_string(nth) + "=CUDA_ERROR_LAUNCH_FAILED");
        injected = control_.counter("faults_injected");
        const std::string error = body(memory);
        hit = control_.counter("faults_injected") > injected;
        control_.set_plan("");
        failed = !error.empty();
        if (failed) {
          ++failures;
          ASSERT_THAT(error, HasSubstr("CUDA_ERROR_LAUNCH_FAILED")) << form << nth;
        }
      }
      control_.finish();
      ASSERT_EQ(control_.counter("live"), 0U) << form << nth;
      ASSERT_EQ(control_.counter("violations"), 0U) << form << nth;
      check(failed);
      if (HasFatalFailure() || HasNonfatalFailure()) return;
      if (!hit) {
        EXPECT_GE(failures, 3) << form;
        return;
      }
    }
    FAIL() << "every run was hit";
  }
  void fail_each_of_save(const std::string& form, std::uint64_t step) {
    {
      const Memory first = model(1);
      ASSERT_EQ(save_by_two(temp_.path().string(), 1, first, on_host(1)), std::vector<std::string>(2, "durable"));
    }
    const Memory seconds_on_host = on_host(2);
    fail_each(
        form,
        [&](const Memory& memory) {
          const auto said = save_by_two(temp_.path().string(), step, memory, seconds_on_host);
          EXPECT_EQ(said[0], said[1]);
          return said[0] == "durable" ? std::string() : said[0];
        },
        [&](bool failed) {
          ASSERT_EQ(problem(1, 1), "");
          const std::string found = problem(step, 2);
          ASSERT_EQ(found.empty(), !failed) << found;
          std::filesystem::remove_all(temp_.path() / ("step-" + std::to_string(step)));
        });
  }
};

TEST_F(DeviceFaults, OfAnyCallOfASaveAreOneErrorOnAllRanksAndLeakNothing) {
  fail_each_of_save("any", 3);
}

TEST_F(DeviceFaults, OfAnyCallOfAQueuedSaveAreOneErrorOnAllRanksAndLeakNothing) {
  fail_each_of_save("any", 2);
}

TEST_F(DeviceFaults, OfAnyCopyOfASaveAreOneErrorOnAllRanksAndLeakNothing) {
  fail_each_of_save("async", 3);
}

TEST_F(DeviceFaults, OfAnyCopyOfAQueuedSaveAreOneErrorOnAllRanksAndLeakNothing) {
  fail_each_of_save("async", 2);
}

TEST_F(DeviceFaults, OfAnyCallOfARestoreAreOneErrorAndLeakNothing) {
  {
    const Memory memory = model(2);
    ASSERT_TRUE(open()->save(1, memory.state(), {.wait = Wait::until_durable}).ok());
  }
  for (const std::string form : {"any", "async"}) {
    fail_each(
        form,
        [&](const Memory& memory) -> std::string {
          auto checkpoint = Checkpoint::open(io::system_files(), temp_.path().string(), 1);
          const auto report = (*checkpoint)->restore(memory.targets(), {});
          return report.ok() ? std::string() : report.error().to_string();
        },
        [](bool) {});
  }
}

}  // namespace
}  // namespace infercluster::checkpoint
