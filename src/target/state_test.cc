// SPDX-License-Identifier: Apache-2.0
#include "target/state.h"

#include <gtest/gtest.h>

#include <fstream>

#include "target/address_space.h"
#include "testing/temp_dir.h"

namespace infercluster::target {
namespace {

State example() {
  State state = *new_state("nqn.2026-01.io.test:pool");
  state.high_water_block = 123456;
  state.objects.push_back({.first_block = 262144,
                           .identity = {.device = 1, .inode = 2, .size = 3, .mtime_ns = -4, .ctime_ns = 5},
                           .path = "/data/a b%20\n\xFFz"});
  state.objects.push_back({.first_block = 300000, .identity = {}, .path = "/data/second"});
  return state;
}

TEST(State, IsReadBack) {
  const Result<State> again = decode_state(encode(example()));
  ASSERT_TRUE(again.ok()) << again.error().to_string();
  State expected = example();
  expected.uuid = again->uuid;  // the rest is the example's
  expected.serial = again->serial;
  EXPECT_EQ(*again, expected);
}

TEST(State, IdentitiesAreNeverTheSame) {
  const State one = *new_state("");
  const State two = *new_state("");
  EXPECT_NE(one.uuid, two.uuid);
  EXPECT_NE(one.nqn, two.nqn);
  EXPECT_NE(one.high_water_block, two.high_water_block) << "one in 2^21 such pairs may be the same";
  EXPECT_GE(one.high_water_block, kEdgeBlocks);
  EXPECT_LE(one.high_water_block, kSpaceBlocks / 2 + kEdgeBlocks);
  EXPECT_TRUE(nvme::check_nqn(one.nqn).ok());
  EXPECT_EQ(nvme::to_string(one.uuid)[14], '4');
  EXPECT_LE(one.serial.size(), 20U);
}

TEST(State, NoChangedByteGoesUnseen) {
  const std::string text = encode(example());
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(decode_state(changed).ok()) << i;
    EXPECT_FALSE(decode_state(text.substr(0, i)).ok()) << i;
  }
}

TEST(State, ANewerFormatIsRefusedByName) {
  std::string text = encode(example());
  text.replace(text.find(" 1\n"), 3, " 2\n");
  const Result<State> state = decode_state(text);
  ASSERT_FALSE(state.ok());
  EXPECT_EQ(state.error().code(), ErrorCode::unsupported);
}

TEST(State, IsOfOneTargetAtATime) {
  const testing::TempDir directory;
  const std::string path = directory.file("state");
  {
    const Result<Fd> held = lock_state(path);
    ASSERT_TRUE(held.ok()) << held.error().to_string();
    const Result<Fd> second = lock_state(path);
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.error().path(), path);
    EXPECT_FALSE(second.error().hint().empty());
    EXPECT_TRUE(lock_state(directory.file("other")).ok());
  }
  EXPECT_TRUE(lock_state(path).ok());
  EXPECT_FALSE(lock_state(directory.file("missing/state")).ok());
}

TEST(State, LivesInAFile) {
  const testing::TempDir directory;
  const std::string path = directory.file("state");
  EXPECT_FALSE(load_state(path)->has_value());
  const State state = example();
  ASSERT_TRUE(save_state(path, state).ok());
  EXPECT_EQ(*load_state(path), state);
  std::ofstream(path, std::ios::app) << "x";
  const Result<std::optional<State>> damaged = load_state(path);
  ASSERT_FALSE(damaged.ok());
  EXPECT_EQ(damaged.error().code(), ErrorCode::corrupt);
  EXPECT_EQ(damaged.error().path(), path);
  EXPECT_FALSE(damaged.error().hint().empty());
}

}  // namespace
}  // namespace infercluster::target
