// SPDX-License-Identifier: Apache-2.0
#include "load/plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/units.h"

namespace infercluster::load {
namespace {

// Carries a plan out on files in memory, as the runner does on real ones, and holds the result against the files.
class PlanTest : public ::testing::Test {
 protected:
  void add_shard(std::vector<safetensors::Tensor> tensors, std::uint64_t data_begin) {
    const std::uint64_t size = data_begin + (tensors.empty() ? 0 : tensors.back().end);
    headers_.push_back(std::make_unique<safetensors::Header>(std::move(tensors), std::nullopt, data_begin, size));
    std::vector<std::uint8_t> file(size);
    for (auto& byte : file) byte = static_cast<std::uint8_t>(random_());
    files_.push_back(std::move(file));
    tables_.shards.push_back(headers_.back().get());
    for (std::size_t i = 0; i < headers_.back()->tensors().size(); ++i)
      tables_.tensors.push_back({headers_.size() - 1, i});
    plan_options_.shards.push_back({size, 4096, 1 << 20});
  }

  // Random tensors, misaligned ones and empty ones among them.
  void add_random_shard() {
    std::vector<safetensors::Tensor> tensors;
    std::uint64_t at = 0;
    const std::size_t count = random_() % 40;
    for (std::size_t i = 0; i < count; ++i) {
      const auto dtype = static_cast<safetensors::Dtype>(random_() % (safetensors::kDtypeCount - 4));
      const std::uint64_t rows = random_() % 9;
      const std::uint64_t columns = random_() % 5 == 0 ? random_() % 20000 : random_() % 50;
      const std::uint64_t bytes = rows * columns * safetensors::bits_of(dtype) / 8;
      tensors.push_back(
          {"t" + std::to_string(headers_.size()) + "." + std::to_string(i), dtype, {rows, columns}, at, at + bytes});
      at += bytes;
    }
    add_shard(std::move(tensors), 8 + random_() % 9000);
  }

  Plan plan(const Options& options) {
    auto wanted = select_tensors(tables_, options).value();
    wanted_ = wanted;
    plan_options_.tensor_alignment = options.tensor_alignment;
    return make_plan(tables_, std::move(wanted), plan_options_).value();
  }

  void expect_delivers(const Plan& plan) {
    for (const Unit& unit : plan.units) {
      std::vector<std::uint8_t> arena(unit.arena_bytes + 1, 0xEE);
      for (const PlannedTransfer& transfer : unit.transfers) carry_out(plan, unit, transfer, arena);
      for (const Move& move : unit.moves) {
        ASSERT_LT(move.to, move.from);
        std::memmove(arena.data() + move.to, arena.data() + move.from, move.bytes);
      }
      for (std::size_t i = unit.first_tensor; i < unit.last_tensor; ++i)
        expect_tensor(plan.tensors[i], wanted_[i], arena);
    }
  }

  void carry_out(const Plan& plan, const Unit& unit, const PlannedTransfer& transfer,
                 std::vector<std::uint8_t>& arena) {
    const ShardTraits& traits = plan_options_.shards[unit.shard];
    const std::vector<std::uint8_t>& file = files_[unit.shard];
    ASSERT_EQ(transfer.file_offset % traits.granularity, 0U);
    ASSERT_EQ(transfer.length % traits.granularity, 0U);
    ASSERT_LE(transfer.end_of_data, file.size());
    std::vector<std::uint8_t> buffer(transfer.length, 0xDD);
    std::memcpy(buffer.data(), file.data() + transfer.file_offset, transfer.end_of_data - transfer.file_offset);
    if (transfer.landed) {
      ASSERT_EQ(transfer.arena_offset % 4096, 0U);
      ASSERT_LE(transfer.arena_offset + transfer.length, unit.landing_bytes);
      std::memcpy(arena.data() + transfer.arena_offset, buffer.data(), buffer.size());
      return;
    }
    for (const std::uint32_t index : transfer.scatter) {
      const StagedRows& staged = unit.rows[index];
      for (std::uint64_t row = 0; row < staged.rows.count; ++row) {
        for (std::uint64_t b = 0; b < staged.rows.row_bytes; ++b) {
          const std::uint64_t offset = staged.rows.file_offset + row * staged.rows.file_stride + b;
          if (offset < transfer.file_offset || offset >= transfer.file_offset + transfer.length) continue;
          arena.at(plan.tensors[staged.tensor].offset + staged.rows.destination + row * staged.rows.row_bytes + b) =
              buffer[offset - transfer.file_offset];
        }
      }
    }
  }

  void expect_tensor(const PlannedTensor& planned, const WantedTensor& wanted, const std::vector<std::uint8_t>& arena) {
    const safetensors::Tensor& tensor = tables_.tensor(planned.ref);
    const std::uint64_t alignment =
        std::max<std::uint64_t>(safetensors::alignment_of(tensor.dtype), plan_options_.tensor_alignment);
    if (planned.bytes > 0) {
      ASSERT_EQ(planned.offset % alignment, 0U) << tensor.name;
    }
    for (const Rows& rows : wanted.part.rows) {
      for (std::uint64_t row = 0; row < rows.count; ++row) {
        ASSERT_EQ(
            std::memcmp(arena.data() + planned.offset + rows.destination + row * rows.row_bytes,
                        files_[planned.ref.shard].data() + rows.file_offset + row * rows.file_stride, rows.row_bytes),
            0)
            << tensor.name;
      }
    }
  }

  std::mt19937 random_{11};
  std::vector<std::unique_ptr<safetensors::Header>> headers_;
  std::vector<std::vector<std::uint8_t>> files_;
  std::vector<WantedTensor> wanted_;
  Tables tables_;
  PlanOptions plan_options_;
};

TEST_F(PlanTest, RandomRepositoriesArriveWholeAlignedAndEqual) {
  for (int round = 0; round < 60; ++round) {
    tables_ = {};
    headers_.clear();
    files_.clear();
    plan_options_ = {};
    for (unsigned i = 0; i <= random_() % 3; ++i) add_random_shard();
    if (tables_.tensors.empty()) continue;
    Options options;
    if (round % 3 == 1)
      options.slices = {{"*", {}, Shard{round % 2 == 0 ? 0U : 1U, static_cast<std::uint32_t>(random_() % 3), 3}}};
    if (round % 5 == 1) options.tensor_alignment = 64;
    if (round % 7 == 1) plan_options_.landing = false;
    if (round % 4 == 1) plan_options_.unit_bytes = 50000;
    if (round % 4 == 3) plan_options_.check_headers = true;
    expect_delivers(plan(options));
  }
}

TEST_F(PlanTest, AWholeAlignedFileIsReadOnceAndNothingMoves) {
  add_shard(
      {{"a", safetensors::Dtype::f32, {300000}, 0, 1200000}, {"b", safetensors::Dtype::u8, {100}, 1200000, 1200100}},
      4104);
  const Plan whole = plan({});
  EXPECT_EQ(whole.read_bytes, files_[0].size() - 4096);
  EXPECT_EQ(whole.move_bytes, 0U);
  EXPECT_FALSE(whole.staged);
  EXPECT_EQ(whole.transfers, 2U);
  EXPECT_LT(whole.padding_bytes(), 2 * 4096U);
}

TEST_F(PlanTest, OddHeadersMoveWhatIsUnalignedByLessThanABlock) {
  add_shard({{"a", safetensors::Dtype::f64, {1000}, 0, 8000},
             {"b", safetensors::Dtype::u8, {3}, 8000, 8003},
             {"c", safetensors::Dtype::f64, {1000}, 8003, 16003}},
            8193);
  const Plan odd = plan({});
  EXPECT_EQ(odd.move_bytes, 16003U);
  EXPECT_LE(odd.padding_bytes(), 3 * 4096U);
  expect_delivers(odd);
}

TEST_F(PlanTest, ARankOfEightReadsAnEighthAndAlignment) {
  std::vector<safetensors::Tensor> tensors;
  for (std::uint64_t i = 0; i < 10; ++i)
    tensors.push_back({"t" + std::to_string(i), safetensors::Dtype::bf16, {4096, 512}, i << 22, (i + 1) << 22});
  add_shard(std::move(tensors), 4000);
  Options options;
  options.slices = {{"*", {}, Shard{0, 3, 8}}};
  const Plan part = plan(options);
  EXPECT_EQ(part.tensor_bytes, (10ULL << 22) / 8);
  EXPECT_LE(part.read_bytes, part.tensor_bytes + 10 * 2 * 4096);
  EXPECT_FALSE(part.staged);  // contiguous: straight to where they live
  expect_delivers(part);
}

TEST_F(PlanTest, ManyScatteredSmallTensorsArePackedInsteadOfPadded) {
  std::vector<safetensors::Tensor> tensors;
  for (std::uint64_t i = 0; i < 400; ++i) {
    tensors.push_back({(i % 2 == 0 ? "big" : "small") + std::to_string(i),
                       safetensors::Dtype::u8,
                       {i % 2 == 0 ? 50000U : 10U},
                       tensors.empty() ? 0 : tensors.back().end,
                       (tensors.empty() ? 0 : tensors.back().end) + (i % 2 == 0 ? 50000U : 10U)});
  }
  add_shard(std::move(tensors), 100);
  Options options;
  options.names = {"small*"};
  const Plan small = plan(options);
  EXPECT_LE(small.arena_bytes, 200 * 16U);
  expect_delivers(small);
}

TEST_F(PlanTest, StreamUnitsStayNearTheSizeAskedFor) {
  std::vector<safetensors::Tensor> tensors;
  for (std::uint64_t i = 0; i < 20; ++i)
    tensors.push_back({"t" + std::to_string(i), safetensors::Dtype::u8, {100000}, i * 100000, (i + 1) * 100000});
  add_shard(std::move(tensors), 100);
  plan_options_.unit_bytes = 350000;
  const Plan stream = plan({});
  EXPECT_EQ(stream.units.size(), 7U);
  for (const Unit& unit : stream.units) EXPECT_LE(unit.arena_bytes, 350000U + 2 * 4096);
  expect_delivers(stream);
}

}  // namespace
}  // namespace infercluster::load
