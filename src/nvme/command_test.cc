// SPDX-License-Identifier: Apache-2.0
#include "nvme/command.h"

#include <gtest/gtest.h>

#include <vector>

#include "nvme/bytes.h"

namespace infercluster::nvme {
namespace {

using CommandBytes = std::array<std::byte, kCommandBytes>;

CommandBytes encoded(const Command& command) {
  CommandBytes bytes{};
  encode(command, std::span<std::byte, kCommandBytes>(bytes));
  return bytes;
}

TEST(Bytes, AreLittleEndian) {
  std::array<std::byte, 8> bytes{};
  store<std::uint32_t>(bytes, 2, 0x01020304);
  EXPECT_EQ(bytes[2], std::byte{4});
  EXPECT_EQ(bytes[5], std::byte{1});
  EXPECT_EQ(load<std::uint32_t>(bytes, 2), 0x01020304U);
  EXPECT_EQ(load<std::uint16_t>(bytes, 4), 0x0102);
}

TEST(Bytes, TextEndsAtItsFirstNulAndLosesItsPadding) {
  std::array<std::byte, 8> bytes{};
  store_text(bytes, {.offset = 1, .length = 6}, "ab c", ' ');
  EXPECT_EQ(bytes[0], std::byte{0});
  EXPECT_EQ(bytes[6], std::byte{' '});
  EXPECT_EQ(load_text(bytes, {.offset = 1, .length = 6}), "ab c");
  store_text(bytes, {.offset = 0, .length = 8}, "ab", '\0');
  bytes[4] = std::byte{'x'};
  EXPECT_EQ(load_text(bytes, {.offset = 0, .length = 8}), "ab");
  store_text(bytes, {.offset = 0, .length = 8}, "12345678", ' ');
  EXPECT_EQ(load_text(bytes, {.offset = 0, .length = 8}), "12345678");
}

TEST(Command, FieldsLieWhereTheSpecificationPutsThem) {
  Command command{.opcode = kRead,
                  .cid = 0xA001,
                  .nsid = 7,
                  .sgl = {.address = 0x1122334455667788, .length = 0x01020304, .identifier = kSglTransport}};
  command.dwords = {10, 11, 12, 13, 14, 15};
  const CommandBytes bytes = encoded(command);
  EXPECT_EQ(bytes[0], std::byte{0x02});
  EXPECT_EQ(bytes[1], std::byte{0x40});
  EXPECT_EQ(bytes[2], std::byte{0x01});
  EXPECT_EQ(bytes[3], std::byte{0xA0});
  EXPECT_EQ(bytes[4], std::byte{7});
  EXPECT_EQ(bytes[24], std::byte{0x88});
  EXPECT_EQ(bytes[32], std::byte{0x04});
  EXPECT_EQ(bytes[39], std::byte{0x5A});
  EXPECT_EQ(bytes[40], std::byte{10});
  EXPECT_EQ(bytes[60], std::byte{15});
  EXPECT_EQ(decode_command(bytes), command);
}

TEST(Completion, FieldsLieWhereTheSpecificationPutsThem) {
  const Completion completion{
      .result = 0x0807060504030201, .sq_head = 0x0A09, .sq_id = 0x0C0B, .cid = 0x0E0D, .status = kInvalidField};
  std::array<std::byte, kCompletionBytes> bytes{};
  encode(completion, std::span<std::byte, kCompletionBytes>(bytes));
  for (std::size_t i = 0; i < 14; ++i) EXPECT_EQ(bytes[i], static_cast<std::byte>(i + 1)) << i;
  EXPECT_EQ(load<std::uint16_t>(bytes, 14), kInvalidField.field());
  EXPECT_EQ(decode_completion(bytes), completion);
}

TEST(Command, ReadsAreReadBackToTheLastBlock) {
  for (const ReadCommand read :
       {ReadCommand{.first_block = 0, .blocks = 1}, ReadCommand{.first_block = (1ULL << 50) - 1, .blocks = 65536},
        ReadCommand{.first_block = UINT64_MAX, .blocks = 256}}) {
    const Command command = encode_read(read, 1);
    EXPECT_EQ(command.opcode, kRead);
    EXPECT_EQ(command.nsid, 1U);
    EXPECT_EQ(decode_read(command), read);
  }
  // Flags in the upper half of dword 12 are not blocks.
  Command flagged = encode_read({.first_block = 5, .blocks = 8}, 1);
  flagged.dwords[2] |= 0x80000000U;
  EXPECT_EQ(decode_read(flagged), (ReadCommand{.first_block = 5, .blocks = 8}));
}

TEST(Command, LogRequestsAreReadBackToTheLargest) {
  const LogRequest requests[] = {
      {.page = kLogDiscovery, .retain_event = false, .offset = 0, .length = 1024},
      {.page = kLogHealth, .retain_event = true, .offset = 0x123456789C, .length = 4},
      {.page = 0xFF, .retain_event = true, .offset = UINT64_MAX - 3, .length = std::uint64_t{4} << 32},
  };
  for (const LogRequest& request : requests) EXPECT_EQ(decode_log_request(encode_log_request(request)), request);
}

TEST(Command, SetFeaturesAndIdentifyNameWhatTheyConcern) {
  const Command features = encode_set_features(kFeatureQueues, 0x00070007);
  EXPECT_EQ(features.opcode, kSetFeatures);
  EXPECT_EQ(features.dword(10), kFeatureQueues);
  EXPECT_EQ(features.dword(11), 0x00070007U);
  const Command identify = encode_identify(kCnsNamespaceDescriptors, 1);
  EXPECT_EQ(identify.opcode, kIdentify);
  EXPECT_EQ(identify.nsid, 1U);
  EXPECT_EQ(identify.dword(10), kCnsNamespaceDescriptors);
}

}  // namespace
}  // namespace infercluster::nvme
