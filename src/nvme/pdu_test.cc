// SPDX-License-Identifier: Apache-2.0
#include "nvme/pdu.h"

#include <gtest/gtest.h>

#include <vector>

#include "nvme/bytes.h"

namespace infercluster::nvme {
namespace {

std::vector<std::byte> prelude(const Pdu& pdu, const DataLayout& layout = {}) {
  std::array<std::byte, kPreludeBytesMax> bytes{};
  bytes.fill(std::byte{0xEE});
  const std::size_t length = encode_prelude(pdu, layout, std::span<std::byte, kPreludeBytesMax>(bytes));
  return {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)};
}

std::vector<Pdu> one_of_each() {
  return {
      {.type = PduType::initialize_request,
       .body = InitializeRequest{.format = 0, .alignment = 3, .digests = {.header = true}, .ready_max = 4}},
      {.type = PduType::initialize_response,
       .body = InitializeResponse{.alignment = 0, .digests = {.data = true}, .host_data_max = 131072}},
      {.type = PduType::host_terminate,
       .body = Terminate{.status = FatalStatus::header_digest_error, .information = 0x01020304}},
      {.type = PduType::target_terminate,
       .body = Terminate{.status = FatalStatus::data_out_of_range, .information = 4}},
      {.type = PduType::command, .body = encode_read({.first_block = 3, .blocks = 8}, 1)},
      {.type = PduType::response, .body = Completion{.result = 1, .sq_head = 2, .cid = 3, .status = kInvalidField}},
      {.type = PduType::host_data,
       .flags = kLastFlag,
       .body = DataHeader{.cid = 1, .tag = 2, .offset = 3, .length = 4}},
      {.type = PduType::target_data,
       .flags = kLastFlag | kSuccessFlag,
       .body = DataHeader{.cid = 5, .offset = 6, .length = 7}},
      {.type = PduType::ready, .body = ReadyToTransfer{.cid = 8, .tag = 9, .offset = 10, .length = 11}},
  };
}

TEST(Pdu, EveryTypeIsReadBack) {
  for (const Pdu& pdu : one_of_each()) {
    const std::vector<std::byte> bytes = prelude(pdu);
    ASSERT_EQ(bytes.size(), *header_length(pdu.type)) << name_of(pdu.type);
    EXPECT_EQ(load<std::uint32_t>(bytes, 4), bytes.size()) << name_of(pdu.type);
    EXPECT_EQ(decode_header(bytes), pdu) << name_of(pdu.type);
  }
}

TEST(Pdu, InitializationIsAsLinuxSendsIt) {
  const std::vector<std::byte> bytes = prelude(
      {.type = PduType::initialize_request, .body = InitializeRequest{.digests = {.header = true, .data = true}}});
  ASSERT_EQ(bytes.size(), 128U);
  const std::array<unsigned, 16> start{0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0};
  for (std::size_t i = 0; i < start.size(); ++i) EXPECT_EQ(std::to_integer<unsigned>(bytes[i]), start[i]) << i;
}

TEST(Pdu, DataBeginsBehindTheHeaderAndItsDigest) {
  const Pdu data{.type = PduType::target_data, .flags = kLastFlag, .body = DataHeader{.length = 4096}};
  const std::vector<std::byte> plain = prelude(data, {.data_length = 4096});
  EXPECT_EQ(plain.size(), 24U);
  EXPECT_EQ(plain[3], std::byte{24});
  EXPECT_EQ(load<std::uint32_t>(plain, 4), 24U + 4096U);

  const std::vector<std::byte> both = prelude(data, {.digests = {.header = true, .data = true}, .data_length = 4096});
  EXPECT_EQ(both.size(), 28U);
  EXPECT_EQ(both[1], std::byte{kHeaderDigestFlag | kDataDigestFlag | kLastFlag});
  EXPECT_EQ(both[3], std::byte{28});
  EXPECT_EQ(load<std::uint32_t>(both, 4), 28U + 4096U + 4U);
  EXPECT_EQ(load<std::uint32_t>(both, 24), digest_of(std::span(both).first(24)));
}

TEST(Pdu, PaddingIsZeroAndAligned) {
  const Pdu data{.type = PduType::target_data, .body = DataHeader{.length = 1}};
  const std::vector<std::byte> bytes =
      prelude(data, {.digests = {.header = true}, .data_length = 1, .data_alignment = 64});
  ASSERT_EQ(bytes.size(), 64U);
  EXPECT_EQ(bytes[3], std::byte{64});
  for (std::size_t i = 28; i < 64; ++i) EXPECT_EQ(bytes[i], std::byte{0}) << i;
}

TEST(Pdu, NoDataMeansNoDataDigest) {
  const std::vector<std::byte> bytes =
      prelude({.type = PduType::command, .body = Command{}}, {.digests = {.header = true, .data = true}});
  EXPECT_EQ(bytes.size(), 76U);
  EXPECT_EQ(bytes[1], std::byte{kHeaderDigestFlag});
  EXPECT_EQ(bytes[3], std::byte{0});
}

TEST(Pdu, TerminationsBearNoDigests) {
  const std::vector<std::byte> bytes = prelude({.type = PduType::target_terminate, .body = Terminate{}},
                                               {.digests = {.header = true, .data = true}, .data_length = 128});
  EXPECT_EQ(bytes.size(), 24U);
  EXPECT_EQ(bytes[1], std::byte{0});
  EXPECT_EQ(load<std::uint32_t>(bytes, 4), 152U);
}

TEST(Pdu, TheDigestIsCastagnolis) {
  std::array<std::byte, 9> digits{};
  for (std::size_t i = 0; i < digits.size(); ++i) digits[i] = static_cast<std::byte>('1' + i);
  EXPECT_EQ(digest_of(digits), 0xE3069283U);
}

TEST(Pdu, NamesAreTheSpecifications) {
  EXPECT_EQ(name_of(PduType::ready), "R2T");
  EXPECT_EQ(name_of(static_cast<PduType>(8)), "a PDU of unknown type");
  EXPECT_EQ(name_of(FatalStatus::ready_limit_exceeded), "R2T limit exceeded");
  EXPECT_FALSE(header_length(static_cast<PduType>(8)).has_value());
}

}  // namespace
}  // namespace infercluster::nvme
