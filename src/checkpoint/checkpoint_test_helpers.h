// SPDX-License-Identifier: Apache-2.0
// State with known bytes, and ranks as threads.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpointer.h"
#include "checkpoint/restore.h"
#include "gpu/device.h"
#include "gpu/memory.h"
#include "testing/gpu_double/control.h"

namespace infercluster::checkpoint::test {

using safetensors::Dtype;
using Shape = std::vector<std::uint64_t>;

// The byte at `offset` of a whole tensor, row-major. Differs between tensors, steps and neighbouring offsets.
inline std::byte byte_of(const std::string& tensor, std::uint64_t seed, std::uint64_t offset) {
  std::uint64_t word = offset / 8 + 1 + seed * 1'000'003;
  for (const char c : tensor) word = word * 131 + static_cast<unsigned char>(c);
  word *= 0x9E3779B97F4A7C15ULL;
  word ^= word >> 29;
  return static_cast<std::byte>(word >> (8 * (offset % 8)));
}

// Where Memory is: a device's ordinal, or -1, the host. Of the process, set before threads of it look.
inline int& device_of_state() {
  static int device = -1;
  return device;
}

// Every test of a suite that derives from this runs with state on the host, and with state on a device of the driver's
// double.
class OnEachDevice : public ::testing::TestWithParam<int> {
 public:
  ~OnEachDevice() override { device_of_state() = -1; }

 protected:
  OnEachDevice() {
    device_of_state() = GetParam();
    if (GetParam() < 0) return;
    if (!gpu_double::Control::is_there()) {  // a real driver, in the device check
      device_of_state() = 0;
      return;
    }
    double_.emplace();
    double_->reset();
    double_->set_plan("delay_us=0..300 seed=11");
  }
  void TearDown() override {
    if (!double_) return;
    double_->set_plan("");
    double_->finish();
    EXPECT_EQ(double_->counter("violations"), 0U);
    EXPECT_EQ(double_->counter("live"), 0U);
    EXPECT_EQ(double_->counter("contexts_created:0"), 0U);  // state lies on device 1
  }

  std::optional<gpu_double::Control> double_;
};

inline auto every_device() {
  return ::testing::Values(-1, 1);
}
inline std::string device_name(const ::testing::TestParamInfo<int>& info) {
  return info.param < 0 ? "OnHost" : "OnDevice";
}

// Boxes of tensors in memory, filled with their part of byte_of().
class Memory {
 public:
  // `fill` false: filled with 0xEE, for what is to be loaded.
  void add(const Piece& piece, std::uint64_t seed, bool fill = true) {
    const std::uint64_t bytes = *check_piece(piece);
    auto& memory = memory_.emplace_back(std::make_unique<std::byte[]>(bytes + 1));
    std::memset(memory.get(), 0xEE, bytes + 1);
    pieces_.push_back(piece);
    if (fill)
      for_each(piece,
               [&](std::uint64_t here, std::uint64_t whole) { memory[here] = byte_of(piece.tensor, seed, whole); });
    if (device_ < 0) return;
    const auto device = gpu::Device::open(device_).value();
    device_memory_.push_back(gpu::DeviceMemory::allocate(device, bytes + 1).value());
    upload(pieces_.size() - 1);
  }
  [[nodiscard]] State state() const {
    State state;
    for (std::size_t i = 0; i < pieces_.size(); ++i) state.pieces.push_back({pieces_[i], address(i), {}, device_});
    return state;
  }
  [[nodiscard]] std::vector<Target> targets() const {
    std::vector<Target> targets;
    for (std::size_t i = 0; i < pieces_.size(); ++i) targets.push_back({pieces_[i], address(i), {}, device_});
    return targets;
  }
  // The first byte that is not that of byte_of(), in words; empty: all are.
  [[nodiscard]] std::string difference(std::uint64_t seed) const {
    std::string found;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      download(i);
      for_each(pieces_[i], [&](std::uint64_t here, std::uint64_t whole) {
        if (found.empty() && memory_[i][here] != byte_of(pieces_[i].tensor, seed, whole))
          found = pieces_[i].tensor + to_string(pieces_[i].box) + " at byte " + std::to_string(here);
      });
      if (memory_[i][*check_piece(pieces_[i])] != std::byte{0xEE})
        found = pieces_[i].tensor + ": written beyond its end";
    }
    return found;
  }
  void overwrite() {
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      std::memset(memory_[i].get(), 0x55, *check_piece(pieces_[i]));
      upload(i);
    }
  }

 private:
  // body(byte offset in the box, byte offset in the whole tensor), for dtypes of whole bytes.
  template <typename Body>
  static void for_each(const Piece& piece, const Body& body) {
    const std::uint64_t width = safetensors::bits_of(piece.dtype) / 8;
    const std::uint64_t elements = *check_piece(piece) / width;
    for (std::uint64_t i = 0; i < elements; ++i) {
      std::uint64_t rest = i;
      std::uint64_t whole = 0;
      std::uint64_t stride = 1;
      for (std::size_t d = piece.shape.size(); d-- > 0;) {
        whole += (rest % piece.box.lengths[d] + piece.box.offsets[d]) * stride;
        rest /= piece.box.lengths[d];
        stride *= piece.shape[d];
      }
      for (std::uint64_t b = 0; b < width; ++b) body(i * width + b, whole * width + b);
    }
  }

  [[nodiscard]] std::byte* address(std::size_t i) const {
    return device_ < 0 ? memory_[i].get() : reinterpret_cast<std::byte*>(device_memory_[i]->span().address);  // NOLINT
  }
  void upload(std::size_t i) const {
    if (device_ < 0) return;
    const auto& memory = device_memory_[i];
    IC_ASSERT(gpu::copy_to_device(memory->device(), memory_[i].get(), memory->span()).ok());
  }
  void download(std::size_t i) const {
    if (device_ < 0) return;
    const auto& memory = device_memory_[i];
    IC_ASSERT(gpu::copy_to_host(memory->device(), memory->span(), memory_[i].get()).ok());
  }

  int device_ = device_of_state();
  std::vector<Piece> pieces_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;  // a copy of it, where the state lies on a device
  std::vector<std::shared_ptr<gpu::DeviceMemory>> device_memory_;
};

inline Piece whole(const std::string& name, Dtype dtype, const Shape& shape) {
  return {name, dtype, shape, manifest::whole_box(shape)};
}

// Part `rank` of `world` along `dimension`, as torch.chunk cuts: the last parts may be shorter, or empty.
inline Piece shard(const std::string& name, Dtype dtype, const Shape& shape, std::size_t dimension, std::uint64_t rank,
                   std::uint64_t world) {
  Piece piece = whole(name, dtype, shape);
  const std::uint64_t step = (shape[dimension] + world - 1) / world;
  const std::uint64_t begin = std::min(rank * step, shape[dimension]);
  piece.box.offsets[dimension] = begin;
  piece.box.lengths[dimension] = std::min(step, shape[dimension] - begin);
  return piece;
}

inline Memory memory_of(const std::vector<Piece>& pieces, std::uint64_t seed) {
  Memory memory;
  for (const Piece& piece : pieces) memory.add(piece, seed);
  return memory;
}

}  // namespace infercluster::checkpoint::test
