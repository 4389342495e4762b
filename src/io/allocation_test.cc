// SPDX-License-Identifier: Apache-2.0
// The steady state allocates nothing: counted by an operator new of this program's own.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "io/engine_test_helpers.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<std::size_t> allocations{0};

void* count_and_allocate(std::size_t size) {
  if (counting) ++allocations;
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) {
  return count_and_allocate(size);
}
void* operator new[](std::size_t size) {
  return count_and_allocate(size);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace infercluster::io {
namespace {

class AllocationTest : public EngineFixture {};

// Reads the file `rounds` times, with eight transfers at a time.
std::size_t read_rounds(Engine& engine, const std::vector<Transfer>& all, unsigned rounds) {
  std::array<Event, 16> events;
  std::size_t delivered = 0;
  for (unsigned round = 0; round < rounds; ++round) {
    std::size_t submitted = 0;
    while (submitted < all.size() || engine.active() > 0) {
      while (submitted < all.size() && engine.submit(all[submitted])) ++submitted;
      const std::size_t count = engine.poll(events, seconds(1));
      for (std::size_t i = 0; i < count; ++i) delivered += events[i].kind == Event::Kind::delivered ? 1u : 0u;
    }
  }
  return delivered;
}

TEST_P(AllocationTest, SteadyStateAllocatesNothing) {
  const auto source = FileSource::open(path_, nullptr, {.direct = DirectPolicy::always});
  ASSERT_TRUE(source.ok());
  const auto buffered = FileSource::open(path_, nullptr, {.direct = DirectPolicy::automatic});
  ASSERT_TRUE(buffered.ok());
  for (Source* tested : {static_cast<Source*>(source->get()), static_cast<Source*>(buffered->get())}) {
    sources_ = {tested};
    std::vector<Transfer> all = whole_file();
    Engine engine(std::move(open_backend({.choice = GetParam(), .depth = 8})).value().backend, steady_clock(), {});
    ASSERT_EQ(read_rounds(engine, all, 2), 2 * all.size());
    allocations = 0;
    counting = true;
    const std::size_t delivered = read_rounds(engine, all, 20);
    counting = false;
    EXPECT_EQ(delivered, 20 * all.size());
    EXPECT_EQ(allocations, 0u);
  }
  EXPECT_TRUE(bytes_are_right());
}

TEST_P(AllocationTest, HedgedTransfersReuseTheirBuffers) {
  sources_ = {&source_, &second_};
  std::vector<Transfer> all = whole_file();
  for (Transfer& transfer : all) transfer.hedge_after = seconds(100);
  Engine engine(std::move(open_backend({.choice = GetParam(), .depth = 8})).value().backend, steady_clock(), {});
  ASSERT_EQ(read_rounds(engine, all, 2), 2 * all.size());
  allocations = 0;
  counting = true;
  const std::size_t delivered = read_rounds(engine, all, 5);
  counting = false;
  EXPECT_EQ(delivered, 5 * all.size());
  EXPECT_EQ(allocations, 0u);
  EXPECT_TRUE(bytes_are_right());
}

TEST(Counting, SeesAllocations) {
  allocations = 0;
  counting = true;
  const auto text = std::make_unique<std::string>(100, 'x');
  counting = false;
  EXPECT_EQ(allocations, 2u);
}

INSTANTIATE_TEST_SUITE_P(Both, AllocationTest, ::testing::Values(BackendChoice::uring, BackendChoice::threads),
                         backend_name);

}  // namespace
}  // namespace infercluster::io
