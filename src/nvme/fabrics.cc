// SPDX-License-Identifier: Apache-2.0
#include "nvme/fabrics.h"

#include <algorithm>
#include <string_view>

#include "base/assert.h"
#include "nvme/bytes.h"

namespace infercluster::nvme {
namespace {

// Of Connect's data.
constexpr std::size_t kControllerIdOffset = 16;
constexpr Field kSubsystemNqnField{.offset = 256, .length = 256};
constexpr Field kHostNqnField{.offset = 512, .length = 256};

Command fabrics_command(FabricsType type) {
  return {.opcode = kFabrics, .nsid = static_cast<std::uint32_t>(type)};
}

std::uint32_t bits(std::uint32_t value, unsigned shift, unsigned width) {
  return value >> shift & ((1U << width) - 1U);
}
std::uint8_t byte_of(std::uint32_t value, unsigned shift, unsigned width) {
  return static_cast<std::uint8_t>(bits(value, shift, width));
}

Command encode_property(FabricsType type, const PropertyAccess& access) {
  IC_ASSERT(access.bytes == 4 || access.bytes == 8);
  Command command = fabrics_command(type);
  command.dwords[0] = access.bytes == 8 ? 1 : 0;
  command.dwords[1] = access.offset;
  return command;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

constexpr bool dash_before(std::size_t byte) {
  return byte == 4 || byte == 6 || byte == 8 || byte == 10;
}

}  // namespace

FabricsType fabrics_type(const Command& command) {
  return static_cast<FabricsType>(command.nsid & 0xFFU);
}

Status check_nqn(std::string_view nqn) {
  const Error wrong =
      Error(ErrorCode::invalid_argument,
            "\"" + std::string(nqn.substr(0, kNqnBytesMax)) + "\" is not an NVMe qualified name")
          .with_hint("It begins with \"nqn.\", has at most 223 characters of printable ASCII, and no spaces");
  if (!nqn.starts_with("nqn.") || nqn.size() > kNqnBytesMax) return wrong;
  if (!std::all_of(nqn.begin(), nqn.end(), [](char c) { return c > ' ' && c < 0x7F; })) return wrong;
  return {};
}

std::string to_string(const Uuid& uuid) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (dash_before(i)) text.push_back('-');
    text.push_back(kDigits[std::to_integer<std::size_t>(uuid[i] >> 4)]);
    text.push_back(kDigits[std::to_integer<std::size_t>(uuid[i] & std::byte{0xF})]);
  }
  return text;
}

Result<Uuid> parse_uuid(std::string_view text) {
  const Error wrong = Error(ErrorCode::invalid_argument, "\"" + std::string(text.substr(0, 64)) + "\" is not a UUID")
                          .with_hint("It looks like f81d4fae-7dec-11d0-a765-00a0c91e6bf6");
  if (text.size() != 36) return wrong;
  Uuid uuid{};
  std::size_t at = 0;
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (dash_before(i) && text[at++] != '-') return wrong;
    const int upper = hex_digit(text[at]);
    const int lower = hex_digit(text[at + 1]);
    if (upper < 0 || lower < 0) return wrong;
    uuid[i] = static_cast<std::byte>(upper << 4 | lower);
    at += 2;
  }
  return uuid;
}

Command encode_connect(const Connect& connect) {
  Command command = fabrics_command(FabricsType::connect);
  command.dwords[0] = static_cast<std::uint32_t>(connect.queue_id) << 16 | connect.format;
  command.dwords[1] = static_cast<std::uint32_t>(connect.attributes) << 16 | connect.queue_size;
  command.dwords[2] = connect.keep_alive_ms;
  return command;
}

Connect decode_connect(const Command& command) {
  return {.format = static_cast<std::uint16_t>(bits(command.dword(10), 0, 16)),
          .queue_id = static_cast<std::uint16_t>(bits(command.dword(10), 16, 16)),
          .queue_size = static_cast<std::uint16_t>(bits(command.dword(11), 0, 16)),
          .attributes = byte_of(command.dword(11), 16, 8),
          .keep_alive_ms = command.dword(12)};
}

void encode(const ConnectData& data, std::span<std::byte, kConnectDataBytes> bytes) {
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  std::copy(data.host_id.begin(), data.host_id.end(), bytes.begin());
  store<std::uint16_t>(bytes, kControllerIdOffset, data.controller_id);
  store_text(bytes, kSubsystemNqnField, data.subsystem_nqn, '\0');
  store_text(bytes, kHostNqnField, data.host_nqn, '\0');
}

ConnectData decode_connect_data(std::span<const std::byte, kConnectDataBytes> bytes) {
  ConnectData data;
  std::copy_n(bytes.begin(), data.host_id.size(), data.host_id.begin());
  data.controller_id = load<std::uint16_t>(bytes, kControllerIdOffset);
  data.subsystem_nqn = load_text(bytes, kSubsystemNqnField);
  data.host_nqn = load_text(bytes, kHostNqnField);
  return data;
}

std::uint64_t encode(const Connected& connected) {
  return connected.controller_id | (connected.authentication_required ? 1U << 17 : 0U);
}

Connected decode_connected(std::uint64_t result) {
  return {.controller_id = static_cast<std::uint16_t>(result & 0xFFFFU),
          .authentication_required = (result & 1U << 17) != 0};
}

std::uint64_t encode_refused_parameter(ConnectPart part, std::uint16_t offset) {
  return static_cast<std::uint64_t>(part) << 16 | offset;
}

Command encode_property_get(const PropertyAccess& access) {
  return encode_property(FabricsType::property_get, access);
}

Command encode_property_set(const PropertyAccess& access) {
  Command command = encode_property(FabricsType::property_set, access);
  command.dwords[2] = static_cast<std::uint32_t>(access.value & 0xFFFFFFFFU);
  command.dwords[3] = static_cast<std::uint32_t>(access.value >> 32);
  return command;
}

PropertyAccess decode_property(const Command& command) {
  const std::uint32_t size = bits(command.dword(10), 0, 3);
  return {.offset = command.dword(11),
          .bytes = static_cast<std::uint8_t>(size == 0   ? 4
                                             : size == 1 ? 8
                                                         : 0),
          .value = std::uint64_t{command.dword(13)} << 32 | command.dword(12)};
}

std::uint64_t encode(const Capabilities& capabilities) {
  return capabilities.queue_entries_max | (capabilities.contiguous_queues ? std::uint64_t{1} << 16 : 0) |
         static_cast<std::uint64_t>(capabilities.timeout_500ms) << 24 |
         (capabilities.nvm_command_set ? std::uint64_t{1} << 37 : 0) |
         static_cast<std::uint64_t>(capabilities.page_bits_min & 0xFU) << 48;
}

Capabilities decode_capabilities(std::uint64_t value) {
  return {.queue_entries_max = static_cast<std::uint16_t>(value & 0xFFFFU),
          .contiguous_queues = (value >> 16 & 1U) != 0,
          .timeout_500ms = static_cast<std::uint8_t>(value >> 24 & 0xFFU),
          .nvm_command_set = (value >> 37 & 1U) != 0,
          .page_bits_min = static_cast<std::uint8_t>(value >> 48 & 0xFU)};
}

std::uint32_t encode(const Configuration& configuration) {
  const auto field = [](std::uint8_t value, unsigned shift, unsigned width) {
    return (static_cast<std::uint32_t>(value) & ((1U << width) - 1U)) << shift;
  };
  return (configuration.enable ? 1U : 0U) | field(configuration.command_set, 4, 3) |
         field(configuration.page_bits, 7, 4) | field(configuration.arbitration, 11, 3) |
         field(configuration.shutdown, 14, 2) | field(configuration.sq_entry_bits, 16, 4) |
         field(configuration.cq_entry_bits, 20, 4);
}

Configuration decode_configuration(std::uint32_t value) {
  return {.enable = (value & 1U) != 0,
          .command_set = byte_of(value, 4, 3),
          .page_bits = byte_of(value, 7, 4),
          .arbitration = byte_of(value, 11, 3),
          .shutdown = byte_of(value, 14, 2),
          .sq_entry_bits = byte_of(value, 16, 4),
          .cq_entry_bits = byte_of(value, 20, 4)};
}

std::uint32_t encode(const ControllerStatus& status) {
  return (status.ready ? 1U : 0U) | (status.fatal ? 2U : 0U) | (static_cast<std::uint32_t>(status.shutdown) & 3U) << 2;
}

ControllerStatus decode_controller_status(std::uint32_t value) {
  return {.ready = (value & 1U) != 0, .fatal = (value & 2U) != 0, .shutdown = byte_of(value, 2, 2)};
}

Command encode_authentication(FabricsType type, const AuthenticationTransfer& transfer) {
  IC_ASSERT(type == FabricsType::authentication_send || type == FabricsType::authentication_receive);
  Command command = fabrics_command(type);
  command.dwords[0] = static_cast<std::uint32_t>(transfer.specific) << 8 | static_cast<std::uint32_t>(transfer.protocol)
                                                                               << 24;
  command.dwords[1] = transfer.length;
  return command;
}

AuthenticationTransfer decode_authentication(const Command& command) {
  return {.protocol = byte_of(command.dword(10), 24, 8),
          .specific = static_cast<std::uint16_t>(bits(command.dword(10), 8, 16)),
          .length = command.dword(11)};
}

}  // namespace infercluster::nvme
