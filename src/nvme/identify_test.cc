// SPDX-License-Identifier: Apache-2.0
#include "nvme/identify.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "nvme/bytes.h"

namespace infercluster::nvme {
namespace {

using Page = std::array<std::byte, kIdentifyBytes>;

template <typename Value>
Page encoded(const Value& value) {
  Page page;
  page.fill(std::byte{0xEE});  // whatever was there must go
  encode(value, std::span<std::byte, kIdentifyBytes>(page));
  return page;
}

TEST(Identify, ControllersAreReadBack) {
  const IdentifyController controller{.serial = "0123456789abcdef",
                                      .model = "InferCluster",
                                      .firmware = "0.1.0",
                                      .many_controllers = true,
                                      .transfer_bits = 8,
                                      .controller_id = 0x0102,
                                      .version = kVersion14,
                                      .events = 0x100,
                                      .type = ControllerType::discovery,
                                      .aborts_max = 3,
                                      .event_requests_max = 4,
                                      .log_attributes = kLogLongOffsets,
                                      .keep_alive_100ms = 5,
                                      .commands_max = 128,
                                      .namespaces = 1,
                                      .volatile_write_cache = 1,
                                      .sgls = kSglsSupported | kSglsTransport,
                                      .subsystem_nqn = "nqn.2026-01.io.test:pool",
                                      .command_capsule_16b = 4,
                                      .response_capsule_16b = 1,
                                      .in_capsule_offset_16b = 0};
  const Page page = encoded(controller);
  EXPECT_EQ(decode_identify_controller(page), controller);
  // Offsets of the specification, for what a wrong one would let both directions agree on.
  EXPECT_EQ(page[4], std::byte{'0'});
  EXPECT_EQ(page[23], std::byte{' '});
  EXPECT_EQ(page[24], std::byte{'I'});
  EXPECT_EQ(page[76], std::byte{2});
  EXPECT_EQ(page[77], std::byte{8});
  EXPECT_EQ(load<std::uint16_t>(page, 78), 0x0102);
  EXPECT_EQ(load<std::uint32_t>(page, 80), kVersion14);
  EXPECT_EQ(page[111], std::byte{2});
  EXPECT_EQ(page[261], std::byte{4});
  EXPECT_EQ(load<std::uint16_t>(page, 320), 5);
  EXPECT_EQ(page[512], std::byte{0x66});
  EXPECT_EQ(page[513], std::byte{0x44});
  EXPECT_EQ(load<std::uint16_t>(page, 514), 128);
  EXPECT_EQ(load<std::uint32_t>(page, 516), 1U);
  EXPECT_EQ(load<std::uint32_t>(page, 536), 0x200001U);
  EXPECT_EQ(page[768], std::byte{'n'});
  EXPECT_EQ(load<std::uint32_t>(page, 1792), 4U);
  EXPECT_EQ(load<std::uint32_t>(page, 1796), 1U);
}

TEST(Identify, AnOldControllerThatSaysNoTypeDoesIo) {
  const Page page{};
  EXPECT_EQ(decode_identify_controller(page).type, ControllerType::io);
}

TEST(Identify, NamespacesAreReadBack) {
  IdentifyNamespace name_space{.blocks = 1ULL << 50, .block_bits = 12, .shared = true, .read_only = true};
  name_space.nguid[3] = std::byte{7};
  const Page page = encoded(name_space);
  EXPECT_EQ(decode_identify_namespace(page), name_space);
  EXPECT_EQ(load<std::uint64_t>(page, 8), 1ULL << 50);
  EXPECT_EQ(page[30], std::byte{1});
  EXPECT_EQ(page[99], std::byte{1});
  EXPECT_EQ(page[130], std::byte{12});
}

TEST(Identify, TheFormatInUseIsTheOneThatCounts) {
  Page page = encoded(IdentifyNamespace{.blocks = 8, .block_bits = 12});
  page[26] = std::byte{0x13};  // format 3, with a bit beside it that says how metadata goes
  page[128 + 4 * 3 + 2] = std::byte{9};
  page[128 + 4 * 3] = std::byte{8};
  EXPECT_EQ(decode_identify_namespace(page).block_bits, 9);
  EXPECT_EQ(decode_identify_namespace(page).metadata_bytes, 8);
}

TEST(Identify, ListsOfNamespacesAreReadBackToTheLastEntry) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1024}}) {
    std::vector<std::uint32_t> ids(count);
    std::iota(ids.begin(), ids.end(), 1);
    Page page;
    page.fill(std::byte{0xEE});
    encode_namespace_list(ids, std::span<std::byte, kIdentifyBytes>(page));
    EXPECT_EQ(decode_namespace_list(page), ids);
  }
}

TEST(Identify, AUuidIsFoundAmongOtherDescriptors) {
  Uuid uuid{};
  for (std::size_t i = 0; i < uuid.size(); ++i) uuid[i] = static_cast<std::byte>(i + 1);
  Page page{};
  encode_namespace_descriptors(uuid, std::span<std::byte, kIdentifyBytes>(page));
  EXPECT_EQ(decode_namespace_descriptors(page), uuid);

  Page others{};
  others[0] = std::byte{1};  // EUI64
  others[1] = std::byte{8};
  others[12] = std::byte{3};
  others[13] = std::byte{16};
  std::copy(uuid.begin(), uuid.end(), others.begin() + 16);
  EXPECT_EQ(decode_namespace_descriptors(others), uuid);
}

TEST(Identify, DescriptorsThatRunOutOfThePageEndTheSearch) {
  Page page{};
  for (std::size_t at = 0; at + 4 + 252 <= kIdentifyBytes; at += 256) {
    page[at] = std::byte{9};
    page[at + 1] = std::byte{252};
  }
  EXPECT_EQ(decode_namespace_descriptors(page), Uuid{});
  page[4096 - 256] = std::byte{3};
  page[4096 - 255] = std::byte{253};  // one byte too long
  EXPECT_EQ(decode_namespace_descriptors(page), Uuid{});
}

DiscoveryLog two_entries() {
  return {.generation = 7,
          .entries = {{.type = SubsystemType::current_discovery,
                       .port_id = 1,
                       .service = "8009",
                       .subsystem_nqn = kDiscoveryNqn,
                       .address = "127.0.0.1"},
                      {.family = AddressFamily::ipv6,
                       .port_id = 1,
                       .service = "4420",
                       .subsystem_nqn = "nqn.2026-01.io.test:pool",
                       .address = "2001:db8::1"}}};
}

TEST(Discovery, LogsAreReadBack) {
  const std::vector<std::byte> bytes = encode(two_entries());
  ASSERT_EQ(bytes.size(), 3 * 1024U);
  EXPECT_EQ(bytes[1024], std::byte{3});
  EXPECT_EQ(bytes[1024 + 2], std::byte{3});
  EXPECT_EQ(bytes[1024 + 32], std::byte{'8'});
  EXPECT_EQ(bytes[1024 + 256], std::byte{'n'});
  EXPECT_EQ(bytes[1024 + 512], std::byte{'1'});
  const Result<DiscoveryLog> log = decode_discovery_log(bytes);
  ASSERT_TRUE(log.ok());
  EXPECT_EQ(*log, two_entries());
}

TEST(Discovery, WhatIsTooShortOrTooLongIsRefused) {
  std::vector<std::byte> bytes = encode(two_entries());
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{17}, std::size_t{1023}, std::size_t{1024}, bytes.size() - 1}) {
    const Result<DiscoveryLog> log = decode_discovery_log(std::span(bytes).first(length));
    ASSERT_FALSE(log.ok()) << length;
    EXPECT_EQ(log.error().code(), ErrorCode::corrupt);
  }
  store<std::uint64_t>(bytes, 8, UINT64_MAX);
  EXPECT_EQ(decode_discovery_log(bytes).error().code(), ErrorCode::corrupt);
  store<std::uint64_t>(bytes, 8, 2);
  store<std::uint16_t>(bytes, 16, 1);
  EXPECT_EQ(decode_discovery_log(bytes).error().code(), ErrorCode::unsupported);
}

}  // namespace
}  // namespace infercluster::nvme
