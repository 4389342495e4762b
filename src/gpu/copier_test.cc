// SPDX-License-Identifier: Apache-2.0
#include "gpu/copier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "base/units.h"
#include "gpu/event.h"
#include "gpu/gpu_test_helpers.h"
#include "testing/child.h"

namespace infercluster::gpu {
namespace {

using memory::Copier;
using memory::RowLayout;
using ::testing::HasSubstr;

class CopierOf : public GpuTest {
 protected:
  static std::unique_ptr<Copier> copier(const std::shared_ptr<Device>& device, const CopierOptions& options = {}) {
    auto made = make_copier(device, options);
    EXPECT_TRUE(made.ok()) << made.error().to_string();
    return std::move(made).value();
  }
  static bool wait_for(Copier& copier, Copier::Fence fence) {
    for (;;) {
      const auto passed = copier.passed(fence);
      if (!passed.ok()) return false;
      if (*passed) return true;
      std::this_thread::yield();
    }
  }
  // Somebody else's work on `to`, on a stream of theirs.
  static void queue(const Stream& stream, const memory::Span& from, const memory::Span& to) {
    const auto current = Device::Current::make(*stream.device());
    EXPECT_EQ(stream.device()->api().cuMemcpyHtoDAsync_v2(to.address, from.host(), to.bytes, stream.handle()),
              CuResult::success);
  }
  // Do the bytes at `where` tell the places from `place` on?
  [[nodiscard]] bool holds(const memory::Span& where, std::uint64_t place) const {
    const auto bytes = bytes_of(where);
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      if (bytes[at] != pattern(place + at)) return false;
    }
    return true;
  }
};

TEST_F(CopierOf, AdjacentCopiesAreOne) {
  const auto device = open();
  const auto target = allocate(device, 64 * kKiB);
  const auto ring = pinned_arena(device, 64 * kKiB);
  const auto copies = copier(device);
  for (std::uint64_t at = 0; at < 64 * kKiB; at += 1000) {
    const std::uint64_t bytes = std::min<std::uint64_t>(1000, 64 * kKiB - at);
    ASSERT_TRUE(copies->copy(ring.part(at, bytes), target->span().part(at, bytes)).ok());
  }
  ASSERT_TRUE(copies->drain().ok());
  EXPECT_TRUE(holds(target->span(), 0));
  EXPECT_EQ(copies->statistics().copies, 1U);
  EXPECT_EQ(copies->statistics().bytes, 64 * kKiB);
  EXPECT_EQ(control_.counter("host_to_device_copies"), 1U);
  EXPECT_EQ(control_.counter("pageable_copies"), 0U);
}

TEST_F(CopierOf, AGapOnEitherSideBeginsANewCopy) {
  const auto device = open();
  const auto target = allocate(device, 8192);
  const auto ring = pinned_arena(device, 8192);
  const auto copies = copier(device);
  ASSERT_TRUE(copies->copy(ring.part(0, 1000), target->span().part(0, 1000)).ok());
  ASSERT_TRUE(copies->copy(ring.part(1000, 1000), target->span().part(1001, 1000)).ok());  // a gap in the target
  ASSERT_TRUE(copies->copy(ring.part(2001, 1000), target->span().part(2001, 1000)).ok());  // a gap in the source
  ASSERT_TRUE(copies->copy(ring.part(0, 0), target->span().part(3001, 0)).ok());           // nothing
  ASSERT_TRUE(copies->drain().ok());
  EXPECT_EQ(copies->statistics().copies, 3U);
  EXPECT_TRUE(holds(target->span().part(0, 1000), 0));
  EXPECT_TRUE(holds(target->span().part(1001, 1000), 1000));
  EXPECT_TRUE(holds(target->span().part(2001, 1000), 2001));
  EXPECT_TRUE(control_.is_poison(target->span().address + 1000, 1));
}

TEST_F(CopierOf, MemoryThatIsNotPinnedIsCopiedAloneAndAtOnce) {
  const auto device = open();
  const auto target = allocate(device, 8192);
  const auto copies = copier(device);
  std::vector<std::byte> source(8192);
  for (std::size_t at = 0; at < source.size(); ++at) source[at] = pattern(at);
  const memory::Span from = memory::host_span(source.data(), source.size());
  ASSERT_TRUE(copies->copy(from.part(0, 4096), target->span().part(0, 4096)).ok());
  ASSERT_TRUE(copies->copy(from.part(4096, 4096), target->span().part(4096, 4096)).ok());
  ASSERT_TRUE(copies->drain().ok());
  EXPECT_TRUE(holds(target->span(), 0));
  EXPECT_EQ(copies->statistics().copies, 2U) << "two pages of two registrations may lie side by side";
}

TEST_F(CopierOf, TwoAllocationsThatTouchAreNotOneTarget) {
  const auto device = open();
  const auto ring = pinned_arena(device, 64 * kKiB);
  const auto first = allocate(device, 4096);
  const auto second = allocate(device, 4096);
  const auto copies = copier(device);
  // As if they touched: the driver says where an allocation ends, and the second copy lies beyond it.
  memory::Span beyond = first->span().part(4096, 4096);
  ASSERT_TRUE(copies->copy(ring.part(0, 4096), first->span()).ok());
  if (second->span().address == beyond.address) {
    ASSERT_TRUE(copies->copy(ring.part(4096, 4096), second->span()).ok());
    ASSERT_TRUE(copies->drain().ok());
    EXPECT_EQ(copies->statistics().copies, 2U);
  } else {
    ASSERT_TRUE(copies->copy(ring.part(4096, 4096), beyond).ok());
    ASSERT_FALSE(copies->drain().ok()) << "it was given to the driver alone, which refuses it";
    EXPECT_EQ(copies->statistics().copies, 1U);
    EXPECT_TRUE(holds(first->span(), 0));
  }
}

TEST_F(CopierOf, TwoRingsThatTouchAreNotOneSource) {
  const auto device = open();
  auto arena = memory::Arena::allocate(8192);
  ASSERT_TRUE(arena.ok());
  for (std::uint64_t at = 0; at < 8192; ++at) (*arena)->data()[at] = pattern(at);
  const auto first = Pinned::make(device, (*arena)->span().part(0, 4096));
  const auto second = Pinned::make(device, (*arena)->span().part(4096, 4096));
  ASSERT_TRUE(first.ok() && second.ok());
  const auto target = allocate(device, 8192);
  const auto copies = copier(device);
  ASSERT_TRUE(copies->copy((*first)->span(), target->span().part(0, 4096)).ok());
  ASSERT_TRUE(copies->copy((*second)->span(), target->span().part(4096, 4096)).ok());
  ASSERT_TRUE(copies->drain().ok());
  EXPECT_EQ(copies->statistics().copies, 2U);
  EXPECT_TRUE(holds(target->span(), 0));
}

TEST_F(CopierOf, RowsAreOneCopyAndLeaveWhatIsBetween) {
  const auto device = open();
  const auto target = allocate(device, 100 * 96);
  const auto ring = pinned_arena(device, 16 * kKiB);
  const auto copies = copier(device);
  const RowLayout layout{100, 60, 80, 96};
  ASSERT_TRUE(copies->copy_rows(ring.part(0, 99 * 80 + 60), target->span().part(0, 99 * 96 + 60), layout).ok());
  ASSERT_TRUE(copies->drain().ok());
  for (std::uint64_t row = 0; row < 100; ++row) {
    EXPECT_TRUE(holds(target->span().part(row * 96, 60), row * 80)) << row;
    EXPECT_TRUE(control_.is_poison(target->span().address + row * 96 + 60, 36)) << row;
  }
  EXPECT_EQ(copies->statistics().copies, 1U);
  EXPECT_EQ(copies->statistics().bytes, 6000U);
}

TEST_F(CopierOf, DenseRowsAreAPlainCopyThatMerges) {
  const auto device = open();
  const auto target = allocate(device, 8192);
  const auto ring = pinned_arena(device, 8192);
  const auto copies = copier(device);
  ASSERT_TRUE(copies->copy_rows(ring.part(0, 1000), target->span().part(0, 1000), {10, 100, 100, 100}).ok());
  ASSERT_TRUE(copies->copy_rows(ring.part(1000, 500), target->span().part(1000, 500), {1, 500, 9000, 700}).ok());
  ASSERT_TRUE(copies->copy_rows(ring.part(0, 0), target->span().part(0, 0), {0, 100, 100, 100}).ok());
  ASSERT_TRUE(copies->drain().ok());
  EXPECT_EQ(copies->statistics().copies, 1U);
  EXPECT_TRUE(holds(target->span().part(0, 1500), 0));
}

TEST_F(CopierOf, RowsTooFarApartForTheDeviceGoOneByOne) {
  control_.set_plan("attribute:11=64");  // the largest pitch
  const auto device = open();
  const auto target = allocate(device, 1000);
  const auto ring = pinned_arena(device, 4096);
  const auto copies = copier(device);
  ASSERT_TRUE(copies->copy_rows(ring.part(0, 9 * 80 + 60), target->span().part(0, 9 * 70 + 60), {10, 60, 80, 70}).ok());
  ASSERT_TRUE(copies->drain().ok());
  EXPECT_EQ(copies->statistics().copies, 10U);
  EXPECT_EQ(control_.counter("calls:cuMemcpy2DAsync"), 0U);
  for (std::uint64_t row = 0; row < 10; ++row) EXPECT_TRUE(holds(target->span().part(row * 70, 60), row * 80)) << row;
}

TEST_F(CopierOf, RowsThatTheDeviceRefusesGoOneByOne) {
  control_.set_plan("cuMemcpy2DAsync:1=CUDA_ERROR_INVALID_VALUE");
  const auto device = open();
  const auto target = allocate(device, 1000);
  const auto ring = pinned_arena(device, 4096);
  const auto copies = copier(device);
  ASSERT_TRUE(copies->copy_rows(ring.part(0, 9 * 80 + 60), target->span().part(0, 9 * 70 + 60), {10, 60, 80, 70}).ok());
  ASSERT_TRUE(copies->drain().ok());
  EXPECT_EQ(copies->statistics().copies, 10U);
  for (std::uint64_t row = 0; row < 10; ++row) EXPECT_TRUE(holds(target->span().part(row * 70, 60), row * 80)) << row;
}

TEST_F(CopierOf, CopiesWithinTheDeviceAndBack) {
  const auto device = open();
  const auto slot = allocate(device, 8192);
  const auto target = allocate(device, 8192);
  const auto ring = pinned_arena(device, 8192);
  const auto back = pinned_arena(device, 8192);
  std::fill_n(back.arena->data(), 8192, std::byte{0});
  const auto copies = copier(device);
  ASSERT_TRUE(copies->copy(ring.part(0, 8192), slot->span()).ok());
  ASSERT_TRUE(copies->copy(slot->span().part(0, 4000), target->span().part(0, 4000)).ok());
  ASSERT_TRUE(copies->copy(slot->span().part(4000, 4192), target->span().part(4000, 4192)).ok());
  ASSERT_TRUE(copies->copy(target->span(), back.part(0, 8192)).ok());
  ASSERT_TRUE(copies->drain().ok());
  EXPECT_TRUE(holds(target->span(), 0));
  EXPECT_EQ(std::vector<std::byte>(back.arena->data(), back.arena->data() + 8192), bytes_of(target->span()));
  EXPECT_EQ(control_.counter("device_to_device_copies"), 1U);
  EXPECT_EQ(copies->statistics().copies, 3U);
}

TEST_F(CopierOf, AFencePassesOnlyBehindItsCopies) {
  const auto device = open();
  const auto target = allocate(device, 8192);
  const auto ring = pinned_arena(device, 8192);
  const auto copies = copier(device);
  control_.hold();
  ASSERT_TRUE(copies->copy(ring.part(0, 4096), target->span().part(0, 4096)).ok());
  const auto first = copies->fence();
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(copies->fence().value(), *first) << "nothing was copied since";
  ASSERT_TRUE(copies->copy(ring.part(4096, 4096), target->span().part(4096, 4096)).ok());
  const auto second = copies->fence();
  ASSERT_TRUE(second.ok());
  EXPECT_NE(*first, *second);
  EXPECT_FALSE(copies->passed(*first).value());
  EXPECT_FALSE(copies->passed(*second).value());
  control_.release();
  ASSERT_TRUE(wait_for(*copies, *second));
  EXPECT_TRUE(copies->passed(*first).value()) << "a stream works in order";
  EXPECT_TRUE(holds(target->span(), 0));
  EXPECT_EQ(copies->statistics().copies, 2U) << "a fence ends what may be merged";
}

TEST_F(CopierOf, AFenceBeforeAnyCopyHasPassed) {
  const auto device = open();
  const auto copies = copier(device);
  const auto fence = copies->fence();
  ASSERT_TRUE(fence.ok());
  EXPECT_TRUE(copies->passed(*fence).value());
  EXPECT_TRUE(copies->drain().ok());
}

// A ring of four slots, each filled anew as soon as its fence has passed: with delays, a slot that is reused too early
// sends the next bytes.
TEST_F(CopierOf, SlotsAreReusedOnlyBehindTheirFences) {
  control_.set_plan("delay_us=0..300 seed=11");
  const auto device = open();
  constexpr std::uint64_t kSlot = 4096;
  constexpr std::uint64_t kRounds = 200;
  const auto target = allocate(device, kRounds * kSlot);
  const auto ring = pinned_arena(device, 4 * kSlot);
  const auto copies = copier(device);
  std::vector<Copier::Fence> fences(4, 0);
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const std::uint64_t slot = round % 4;
    if (round >= 4) {
      ASSERT_TRUE(wait_for(*copies, fences[slot]));
    }
    for (std::uint64_t at = 0; at < kSlot; ++at) {
      ring.arena->data()[slot * kSlot + at] = pattern(round * kSlot + at);
    }
    ASSERT_TRUE(copies->copy(ring.part(slot * kSlot, kSlot), target->span().part(round * kSlot, kSlot)).ok());
    const auto fence = copies->fence();
    ASSERT_TRUE(fence.ok());
    fences[slot] = *fence;
  }
  ASSERT_TRUE(copies->drain().ok());
  EXPECT_TRUE(holds(target->span(), 0));
  EXPECT_LE(control_.counter("events"), 4U) << "fences share a pool of events";
}

TEST_F(CopierOf, CopiesWaitForAMark) {
  const auto device = open();
  const auto target = allocate(device, 4096);
  const auto ring = pinned_arena(device, 8192);
  const auto others = Stream::create(device);
  const auto mark = Event::create(device);
  ASSERT_TRUE(others.ok() && mark.ok());
  control_.hold();
  // The reader of a block: its work on the bytes of before must be done before the block is filled anew.
  queue(**others, ring.part(0, 4096), target->span());
  ASSERT_TRUE((*mark)->record(**others).ok());
  const auto copies = copier(device);
  ASSERT_TRUE(copies->wait_for(**mark).ok());
  ASSERT_TRUE(copies->copy(ring.part(4096, 4096), target->span()).ok());
  const auto fence = copies->fence();
  ASSERT_TRUE(fence.ok());
  control_.release();
  ASSERT_TRUE(copies->drain().ok());
  EXPECT_TRUE((*mark)->passed().value());
  EXPECT_TRUE(holds(target->span(), 4096)) << "the later bytes are there, whatever the streams' order";
}

TEST_F(CopierOf, TheFirstCopyWaitsForTheCallersStream) {
  for (int seed = 1; seed <= 8; ++seed) {
    control_.set_plan("delay_us=0..3000 seed=" + std::to_string(seed));
    const auto device = open();
    const auto target = allocate(device, 4096);
    const auto ring = pinned_arena(device, 8192);
    const auto callers = Stream::create(device);
    ASSERT_TRUE(callers.ok());
    queue(**callers, ring.part(0, 4096), target->span());
    CopierOptions options;
    options.after = static_cast<StreamId>(reinterpret_cast<std::uintptr_t>((*callers)->handle()));
    const auto copies = copier(device, options);
    ASSERT_TRUE(copies->copy(ring.part(4096, 4096), target->span()).ok());
    ASSERT_TRUE(copies->drain().ok());
    ASSERT_TRUE((*callers)->wait().ok());
    EXPECT_TRUE(holds(target->span(), 4096)) << seed;
  }
}

TEST_F(CopierOf, AnErrorIsRememberedAndDrainingStillWaits) {
  const auto device = open();
  const auto target = allocate(device, 3 * 4096);
  const auto ring = pinned_arena(device, 3 * 4096);
  const auto copies = copier(device);
  control_.set_plan("cuMemcpyHtoDAsync:2=CUDA_ERROR_UNKNOWN delay_us=2000..2000");
  ASSERT_TRUE(copies->copy(ring.part(0, 4096), target->span().part(0, 4096)).ok());
  ASSERT_TRUE(copies->fence().ok());
  ASSERT_TRUE(copies->copy(ring.part(4096, 4096), target->span().part(4096, 4096)).ok());
  const auto failed = copies->fence();
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code(), ErrorCode::io);
  EXPECT_THAT(failed.error().message(), HasSubstr("cannot copy 4.0 KiB on GPU 0"));
  EXPECT_THAT(failed.error().message(), HasSubstr("cuMemcpyHtoDAsync failed with CUDA_ERROR_UNKNOWN"));
  const Status later = copies->copy(ring.part(8192, 4096), target->span().part(8192, 4096));
  ASSERT_FALSE(later.ok());
  EXPECT_EQ(later.error().message(), failed.error().message());
  EXPECT_EQ(copies->fence().error().message(), failed.error().message());
  EXPECT_EQ(copies->passed(0).error().message(), failed.error().message());
  const Status drained = copies->drain();
  EXPECT_EQ(drained.error().message(), failed.error().message());
  EXPECT_TRUE(holds(target->span().part(0, 4096), 0)) << "what was in flight has come";
}

TEST_F(CopierOf, AnErrorOfTheDeviceShowsItselfAtTheFence) {
  const auto device = open();
  const auto target = allocate(device, 4096);
  const auto ring = pinned_arena(device, 4096);
  const auto copies = copier(device);
  control_.set_plan("async:1=CUDA_ERROR_ECC_UNCORRECTABLE");
  ASSERT_TRUE(copies->copy(ring.part(0, 4096), target->span()).ok());
  auto fence = copies->fence();
  if (fence.ok()) {
    EXPECT_FALSE(wait_for(*copies, *fence));
  }
  const Status drained = copies->drain();
  ASSERT_FALSE(drained.ok());
  EXPECT_THAT(drained.error().message(), HasSubstr("CUDA_ERROR_ECC_UNCORRECTABLE"));
  EXPECT_THAT(drained.error().hint(), HasSubstr("start the process again"));
}

TEST_F(CopierOf, ItsEndWaitsForWhatIsInFlight) {
  control_.set_plan("delay_us=3000..3000");
  const auto device = open();
  const auto target = allocate(device, 4096);
  auto ring = pinned_arena(device, 4096);
  {
    const auto copies = copier(device);
    ASSERT_TRUE(copies->copy(ring.part(0, 4096), target->span()).ok());
    ASSERT_TRUE(copies->fence().ok());
  }
  std::fill_n(ring.arena->data(), 4096, std::byte{0});  // the source may be reused now
  EXPECT_TRUE(holds(target->span(), 0));
  EXPECT_EQ(control_.counter("streams_destroyed_in_flight"), 0U);
}

TEST_F(CopierOf, SteadyStateMakesNoMoreEventsOrStreams) {
  const auto device = open();
  const auto target = allocate(device, 8192);
  const auto ring = pinned_arena(device, 8192);
  const auto copies = copier(device);
  for (int round = 0; round < 50; ++round) {
    ASSERT_TRUE(copies->copy(ring.part(0, 4096), target->span().part(0, 4096)).ok());
    const auto fence = copies->fence();
    ASSERT_TRUE(fence.ok());
    ASSERT_TRUE(wait_for(*copies, *fence));
  }
  EXPECT_EQ(control_.counter("calls:cuEventCreate"), 1U);
  EXPECT_EQ(control_.counter("calls:cuStreamCreate"), 1U);
}

TEST_F(CopierOf, TheEndsOfAForkedChildCallNothing) {
  const auto device = open();
  auto copies = copier(device);
  const int answer = testing::in_child([&] {
    const bool refused = !copies->drain().ok();
    copies.reset();
    return refused ? 0 : 1;
  });
  EXPECT_EQ(answer, 0);
}

}  // namespace
}  // namespace infercluster::gpu
