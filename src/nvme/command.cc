// SPDX-License-Identifier: Apache-2.0
#include "nvme/command.h"

#include "base/assert.h"
#include "nvme/bytes.h"

namespace infercluster::nvme {
namespace {

constexpr std::size_t kSglOffset = 24;
constexpr std::size_t kDword10Offset = 40;

std::uint32_t low(std::uint64_t value) {
  return static_cast<std::uint32_t>(value & 0xFFFFFFFFU);
}
std::uint32_t high(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32);
}

}  // namespace

std::uint32_t Command::dword(std::size_t index) const {
  IC_ASSERT(index >= 10 && index <= 15);
  return dwords[index - 10];
}

void encode(const Command& command, std::span<std::byte, kCommandBytes> bytes) {
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  store<std::uint8_t>(bytes, 0, command.opcode);
  store<std::uint8_t>(bytes, 1, command.flags);
  store<std::uint16_t>(bytes, 2, command.cid);
  store<std::uint32_t>(bytes, 4, command.nsid);
  store<std::uint64_t>(bytes, kSglOffset, command.sgl.address);
  store<std::uint32_t>(bytes, kSglOffset + 8, command.sgl.length);
  store<std::uint8_t>(bytes, kSglOffset + 15, command.sgl.identifier);
  for (std::size_t i = 0; i < command.dwords.size(); ++i) {
    store<std::uint32_t>(bytes, kDword10Offset + 4 * i, command.dwords[i]);
  }
}

Command decode_command(std::span<const std::byte, kCommandBytes> bytes) {
  Command command{.opcode = load<std::uint8_t>(bytes, 0),
                  .flags = load<std::uint8_t>(bytes, 1),
                  .cid = load<std::uint16_t>(bytes, 2),
                  .nsid = load<std::uint32_t>(bytes, 4),
                  .sgl = {.address = load<std::uint64_t>(bytes, kSglOffset),
                          .length = load<std::uint32_t>(bytes, kSglOffset + 8),
                          .identifier = load<std::uint8_t>(bytes, kSglOffset + 15)},
                  .dwords = {}};
  for (std::size_t i = 0; i < command.dwords.size(); ++i) {
    command.dwords[i] = load<std::uint32_t>(bytes, kDword10Offset + 4 * i);
  }
  return command;
}

void encode(const Completion& completion, std::span<std::byte, kCompletionBytes> bytes) {
  store<std::uint64_t>(bytes, 0, completion.result);
  store<std::uint16_t>(bytes, 8, completion.sq_head);
  store<std::uint16_t>(bytes, 10, completion.sq_id);
  store<std::uint16_t>(bytes, 12, completion.cid);
  store<std::uint16_t>(bytes, 14, completion.status.field());
}

Completion decode_completion(std::span<const std::byte, kCompletionBytes> bytes) {
  return {.result = load<std::uint64_t>(bytes, 0),
          .sq_head = load<std::uint16_t>(bytes, 8),
          .sq_id = load<std::uint16_t>(bytes, 10),
          .cid = load<std::uint16_t>(bytes, 12),
          .status = CommandStatus::from_field(load<std::uint16_t>(bytes, 14))};
}

Command encode_read(const ReadCommand& read, std::uint32_t nsid) {
  IC_ASSERT(read.blocks >= 1 && read.blocks <= 65536);
  Command command{.opcode = kRead, .nsid = nsid};
  command.dwords = {low(read.first_block), high(read.first_block), read.blocks - 1, 0, 0, 0};
  return command;
}

ReadCommand decode_read(const Command& command) {
  return {.first_block = std::uint64_t{command.dword(11)} << 32 | command.dword(10),
          .blocks = (command.dword(12) & 0xFFFFU) + 1};
}

Command encode_identify(std::uint8_t cns, std::uint32_t nsid) {
  Command command{.opcode = kIdentify, .nsid = nsid};
  command.dwords[0] = cns;
  return command;
}

Command encode_log_request(const LogRequest& request) {
  IC_ASSERT(request.length % 4 == 0 && request.length >= 4 && request.offset % 4 == 0);
  const std::uint64_t dwords = request.length / 4 - 1;
  IC_ASSERT(dwords <= 0xFFFFFFFFU);
  Command command{.opcode = kGetLogPage};
  command.dwords[0] = request.page | (request.retain_event ? 1U << 15 : 0U) | low(dwords & 0xFFFFU) << 16;
  command.dwords[1] = low(dwords >> 16);
  command.dwords[2] = low(request.offset);
  command.dwords[3] = high(request.offset);
  return command;
}

LogRequest decode_log_request(const Command& command) {
  const std::uint64_t dwords = (std::uint64_t{command.dword(11)} & 0xFFFFU) << 16 | command.dword(10) >> 16;
  return {.page = static_cast<std::uint8_t>(command.dword(10) & 0xFFU),
          .retain_event = (command.dword(10) & 1U << 15) != 0,
          .offset = std::uint64_t{command.dword(13)} << 32 | command.dword(12),
          .length = (dwords + 1) * 4};
}

Command encode_set_features(std::uint8_t feature, std::uint32_t value) {
  Command command{.opcode = kSetFeatures};
  command.dwords[0] = feature;
  command.dwords[1] = value;
  return command;
}

}  // namespace infercluster::nvme
