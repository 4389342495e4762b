// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gpu/device.h"
#include "gpu/memory.h"
#include "memory/arena.h"
#include "testing/gpu_double/control.h"

namespace infercluster::gpu {

// Runs against the double. At the end of each test nothing is left, and nothing was misused.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override { control_.reset(); }
  void TearDown() override {
    control_.set_plan("");
    control_.finish();
    EXPECT_EQ(control_.counter("live"), 0U);
    EXPECT_EQ(control_.counter("violations"), 0U);
    EXPECT_EQ(control_.counter("contexts_destroyed_in_use"), 0U);
    control_.reset();
  }

  static std::shared_ptr<Device> open(int ordinal = 0) {
    auto device = Device::open(ordinal);
    EXPECT_TRUE(device.ok()) << device.error().to_string();
    return std::move(device).value();
  }
  static std::shared_ptr<DeviceMemory> allocate(const std::shared_ptr<Device>& device, std::uint64_t bytes) {
    auto memory = DeviceMemory::allocate(device, bytes);
    EXPECT_TRUE(memory.ok()) << memory.error().to_string();
    return std::move(memory).value();
  }
  [[nodiscard]] std::vector<std::byte> bytes_of(const memory::Span& span) const {
    std::vector<std::byte> bytes(span.bytes);
    EXPECT_TRUE(control_.read(span.address, bytes));
    return bytes;
  }

  gpu_double::Control control_;
};

// Host memory with bytes that tell their place (never the double's poison, whose high bit is set).
inline std::byte pattern(std::uint64_t place) {
  return static_cast<std::byte>((place * 31 + place / 127) & 0x7F);
}

struct PinnedArena {
  std::shared_ptr<memory::Arena> arena;
  std::unique_ptr<Pinned> pinned;

  [[nodiscard]] memory::Span part(std::uint64_t offset, std::uint64_t bytes) const {
    return arena->span().part(offset, bytes);
  }
};

inline PinnedArena pinned_arena(const std::shared_ptr<Device>& device, std::uint64_t bytes) {
  auto arena = memory::Arena::allocate(bytes);
  EXPECT_TRUE(arena.ok());
  for (std::uint64_t place = 0; place < bytes; ++place) (*arena)->data()[place] = pattern(place);
  auto pinned = Pinned::make(device, (*arena)->span());
  EXPECT_TRUE(pinned.ok()) << pinned.error().to_string();
  return {std::move(arena).value(), std::move(pinned).value()};
}

}  // namespace infercluster::gpu
