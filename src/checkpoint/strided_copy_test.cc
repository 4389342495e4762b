// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/strided_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "base/log.h"
#include "base/units.h"
#include "checkpoint/box_copy.h"
#include "checkpoint/checkpoint_test_helpers.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

using test::Dtype;
using test::whole;
using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;

constexpr Dtype kDtypes[] = {Dtype::u8, Dtype::bf16, Dtype::f32, Dtype::f64, Dtype::c64};

std::uint64_t width_of(const Piece& piece) {
  return safetensors::bits_of(piece.dtype) / 8;
}

// A box of elements that lie anyhow in memory: `first` is where its element 0 lies.
struct Strided {
  Piece piece;
  Strides strides;
  Bytes memory;
  std::size_t first = 0;

  [[nodiscard]] const std::byte* data() const { return memory.data() + first; }
  std::byte* data() { return memory.data() + first; }
};

// Where an element lies, counted row-major: one by one, by the definition of strides.
std::int64_t offset_of(const Strided& strided, std::uint64_t element) {
  std::int64_t offset = 0;
  for (std::size_t d = strided.strides.size(); d-- > 0;) {
    const std::uint64_t length = strided.piece.box.lengths[d];
    offset += static_cast<std::int64_t>(element % length) * strided.strides[d];
    element /= length;
  }
  return offset;
}

std::uint64_t elements_of(const Piece& piece) {
  return *check_piece(piece) / width_of(piece);
}

// The bytes in logical order, by a naive copy.
Bytes logical(const Strided& strided) {
  const std::uint64_t width = width_of(strided.piece);
  Bytes bytes;
  for (std::uint64_t i = 0; i < elements_of(strided.piece); ++i) {
    const std::byte* element = strided.data() + offset_of(strided, i);
    bytes.insert(bytes.end(), element, element + width);
  }
  return bytes;
}

// Any permutation of dimensions, with gaps, backwards, or (where only read) expanded.
Strided any_strided(Random& random, const std::string& name, std::uint64_t elements_max, MemoryUse use) {
  const auto below = [&](std::uint64_t end) { return random() % end; };
  Strided strided;
  const std::size_t dimensions = below(5);
  test::Shape lengths;
  std::uint64_t elements = 1;
  for (std::size_t d = 0; d < dimensions; ++d) {
    lengths.push_back(1 + below(std::max<std::uint64_t>(elements_max / elements, 1)) % (below(4) == 0 ? 500 : 9));
    elements *= lengths.back();
  }
  strided.piece = whole(name, kDtypes[below(std::size(kDtypes))], lengths);
  std::vector<std::size_t> order(dimensions);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  strided.strides.assign(dimensions, 0);
  const std::uint64_t width = width_of(strided.piece);
  std::uint64_t step = width;
  std::uint64_t span = width;
  for (const std::size_t d : order) {
    if (use == MemoryUse::read && below(6) == 0) continue;  // expanded
    if (below(4) == 0) step += width * below(3);            // sliced
    const bool backwards = below(5) == 0;
    strided.strides[d] = static_cast<std::int64_t>(step) * (backwards ? -1 : 1);
    if (backwards) strided.first += step * (lengths[d] - 1);
    span += step * (lengths[d] - 1);
    step *= lengths[d];
  }
  strided.memory.resize(span);
  for (std::byte& byte : strided.memory) byte = static_cast<std::byte>(random());
  return strided;
}

// The window [begin, end) of the file, copied by parts of some size.
void copy_window(const Strided& source, const BoxCopy& box, std::uint64_t begin, std::uint64_t end, Bytes& file,
                 std::uint64_t part_bytes) {
  std::vector<StridedCopy> copies;
  for (const BoxCopy::Part& part : box.parts(begin, end))
    divide(from_memory(part, source.data(), file.data(), 0), part_bytes, copies);
  std::uint64_t bytes = 0;
  for (const StridedCopy& item : copies) {
    copy(item);
    bytes += item.bytes();
  }
  const std::uint64_t last = std::min(end, box.chunk_end());
  EXPECT_EQ(bytes, last > std::max(begin, box.chunk_begin()) ? last - std::max(begin, box.chunk_begin()) : 0);
}

TEST(StridedCopy, AnyMemoryComesInLogicalOrderThroughAnyWindows) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  for (int round = 0; round < 400; ++round) {
    const Strided source = any_strided(random, "t", 20'000, MemoryUse::read);
    const Bytes expected = logical(source);
    const std::uint64_t begin = random() % 100;
    const manifest::Chunk chunk{"t",   source.piece.dtype, source.piece.shape, source.piece.box, 0,
                                begin, expected.size()};
    const auto box = BoxCopy::between(chunk, source.piece.box, source.strides);
    ASSERT_TRUE(box.ok() && *box);
    Bytes file(begin + expected.size() + 100, std::byte{0xEE});
    std::uint64_t at = 0;
    while (at < file.size()) {
      const std::uint64_t end = at + 1 + random() % (round % 2 == 0 ? 50'000 : expected.size() / 3 + 7);
      copy_window(source, **box, at, end, file, 1 + random() % 5000);
      at = end;
    }
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(), file.begin() + static_cast<std::ptrdiff_t>(begin)))
        << round;
    for (std::uint64_t i = 0; i < file.size(); ++i) {
      const bool outside = i < begin || i >= begin + expected.size();
      ASSERT_TRUE(!outside || file[i] == std::byte{0xEE});
    }
  }
}

// Large enough for tiles with edges, for each width.
TEST(StridedCopy, TransposedAndChannelsLastPlanesAreExact) {
  for (const Dtype dtype : kDtypes) {
    for (const auto& [rows, columns] : {std::pair{131U, 257U}, std::pair{1U, 300U}, std::pair{64U, 64U}}) {
      Strided source;
      source.piece = whole("t", dtype, {2, rows, columns, 3});
      const auto width = static_cast<std::int64_t>(width_of(source.piece));
      source.strides = {width * rows * columns * 3, width, width * rows, width * rows * columns};
      source.memory.resize(*check_piece(source.piece));
      Random random(7);
      for (std::byte& byte : source.memory) byte = static_cast<std::byte>(random());
      const Bytes expected = logical(source);
      const manifest::Chunk chunk{"t", dtype, source.piece.shape, source.piece.box, 0, 0, expected.size()};
      const auto box = BoxCopy::between(chunk, source.piece.box, source.strides);
      Bytes file(expected.size());
      copy_window(source, **box, 0, file.size(), file, 64 * kKiB);
      ASSERT_EQ(file, expected);
    }
  }
}

TEST(StridedCopy, NeighboursAreCopiedAsOneRun) {
  const Piece piece = whole("t", Dtype::f32, {5, 1, 6, 7});
  const manifest::Chunk chunk{"t", piece.dtype, piece.shape, piece.box, 0, 0, 840};
  const auto contiguous = BoxCopy::between(chunk, piece.box, {168, -1, 28, 4});
  ASSERT_EQ((*contiguous)->parts(0, 840).size(), 1U);
  EXPECT_EQ((*contiguous)->parts(0, 840)[0].run_bytes, 840U);
  const auto sliced = BoxCopy::between(chunk, piece.box, {336, 0, 28, 4});
  ASSERT_EQ((*sliced)->parts(0, 840).size(), 1U);
  EXPECT_EQ((*sliced)->parts(0, 840)[0].run_bytes, 168U);
  std::vector<StridedCopy> parts;
  divide({nullptr, nullptr, 10, {}}, 4, parts);
  EXPECT_EQ(parts.size(), 3U);
}

TEST(StridedCopy, StridesThatCannotBeAreRefusedByName) {
  const auto refusal = [](const Piece& piece, const Strides& strides, MemoryUse use) {
    const Status status = check_strides(piece, strides, use);
    return status.ok() ? std::string() : status.error().to_string();
  };
  const Piece piece = whole("layer.w", Dtype::f32, {3, 4});
  EXPECT_NE(refusal(piece, {4}, MemoryUse::read).find("layer.w"), std::string::npos);
  EXPECT_NE(refusal(whole("f4", Dtype::f4, {2, 4}), {2, 1}, MemoryUse::read).find("less than a byte"),
            std::string::npos);
  EXPECT_NE(refusal(piece, {INT64_MAX, 4}, MemoryUse::read), "");
  EXPECT_NE(refusal(piece, {INT64_MIN, 4}, MemoryUse::read), "");
  EXPECT_EQ(refusal(piece, {0, 4}, MemoryUse::read), "");
  EXPECT_NE(refusal(piece, {0, 4}, MemoryUse::write).find("overlap"), std::string::npos);
  EXPECT_NE(refusal(piece, {8, 4}, MemoryUse::write), "");
  EXPECT_EQ(refusal(piece, {-4, 12}, MemoryUse::write), "");
  EXPECT_EQ(refusal(whole("one", Dtype::f32, {1, 4}), {INT64_MIN, 4}, MemoryUse::write), "");
  EXPECT_EQ(refusal(whole("none", Dtype::f32, {0, 4}), {0, 0}, MemoryUse::write), "");
}

class StridedState : public ::testing::Test {
 protected:
  testing::TempDir temp_;
};

TEST_F(StridedState, IsSavedInWavesAndComesBackIntoOtherStrides) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  std::vector<Strided> sources;
  State state;
  Options options;
  options.arena_bytes = 4 * 64 * kKiB;
  std::uint64_t bytes = 0;
  for (int i = 0; i < 40 || bytes <= options.arena_bytes; ++i) {  // more than goes in one wave, whatever the seed
    sources.push_back(any_strided(random, "t" + std::to_string(i), 40'000, MemoryUse::read));
    bytes += *check_piece(sources.back().piece);
  }
  for (const Strided& source : sources) state.pieces.push_back({source.piece, source.data(), source.strides});
  auto checkpointer = Checkpointer::open(temp_.path().string(), options);
  const auto save = (*checkpointer)->save(1, state, {.wait = Wait::until_durable});
  ASSERT_TRUE(save.ok()) << save.error().to_string();
  EXPECT_GT((*save)->report().waves, 1U);
  std::vector<Strided> sinks;
  std::vector<Target> targets;
  for (const Strided& source : sources) {
    Strided sink = any_strided(random, source.piece.tensor, 1, MemoryUse::write);
    sink.piece = source.piece;  // transposed as a whole, with a gap between elements
    const auto width = static_cast<std::int64_t>(width_of(sink.piece));
    std::int64_t step = 2 * width;
    sink.strides.clear();
    for (const std::uint64_t length : sink.piece.shape) {
      sink.strides.push_back(step);
      step *= static_cast<std::int64_t>(length);
    }
    sink.first = 0;
    sink.memory.assign(static_cast<std::size_t>(step), std::byte{0xEE});
    sinks.push_back(std::move(sink));
  }
  for (Strided& sink : sinks) targets.push_back({sink.piece, sink.data(), sink.strides});
  auto checkpoint = Checkpoint::open(io::system_files(), temp_.path().string(), 1);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
  const auto restored = (*checkpoint)->restore(targets, {});
  ASSERT_TRUE(restored.ok()) << restored.error().to_string();
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    ASSERT_EQ(logical(sinks[i]), logical(sources[i])) << sinks[i].piece.tensor;
    const std::uint64_t width = width_of(sinks[i].piece);
    for (std::size_t at = 0; at < sinks[i].memory.size(); ++at) {
      const bool gap = at / width % 2 == 1;
      ASSERT_TRUE(!gap || sinks[i].memory[at] == std::byte{0xEE});
    }
  }
}

TEST_F(StridedState, IsRefusedByNameAndLeavesNothing) {
  auto checkpointer = Checkpointer::open(temp_.path().string(), {});
  const Bytes memory(64);
  State state;
  state.pieces.push_back({whole("packed", Dtype::f4, {8, 8}), memory.data(), {1, 8}});
  const auto save = (*checkpointer)->save(1, state, {});
  ASSERT_FALSE(save.ok());
  EXPECT_EQ(save.error().tensor(), "packed");
  EXPECT_TRUE(std::filesystem::is_empty(temp_.path()));
}

}  // namespace
}  // namespace infercluster::checkpoint
