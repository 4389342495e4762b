// SPDX-License-Identifier: Apache-2.0
#include "nvme/identify.h"

#include <algorithm>

#include "base/assert.h"
#include "nvme/bytes.h"

namespace infercluster::nvme {
namespace {

constexpr Field kSerial{.offset = 4, .length = 20};
constexpr Field kModel{.offset = 24, .length = 40};
constexpr Field kFirmware{.offset = 64, .length = 8};
constexpr Field kSubsystemNqn{.offset = 768, .length = 256};
constexpr std::uint8_t kManyControllers = 1U << 1;

constexpr std::size_t kLbaFormats = 128;  // 16 of 4 bytes each
constexpr std::size_t kNguid = 104;
constexpr std::uint8_t kUuidType = 3;
constexpr std::size_t kUuidBytes = 16;

constexpr Field kService{.offset = 32, .length = 32};
constexpr Field kEntryNqn{.offset = 256, .length = 256};
constexpr Field kAddress{.offset = 512, .length = 256};

void clear(std::span<std::byte> bytes) {
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
}

void encode_entry(const DiscoveryEntry& entry, std::span<std::byte> bytes) {
  store<std::uint8_t>(bytes, 0, entry.transport);
  store<std::uint8_t>(bytes, 1, static_cast<std::uint8_t>(entry.family));
  store<std::uint8_t>(bytes, 2, static_cast<std::uint8_t>(entry.type));
  store<std::uint16_t>(bytes, 4, entry.port_id);
  store<std::uint16_t>(bytes, 6, entry.controller_id);
  store<std::uint16_t>(bytes, 8, entry.admin_queue_size);
  store_text(bytes, kService, entry.service, ' ');
  store_text(bytes, kEntryNqn, entry.subsystem_nqn, '\0');
  store_text(bytes, kAddress, entry.address, ' ');
}

DiscoveryEntry decode_entry(std::span<const std::byte> bytes) {
  return {.transport = load<std::uint8_t>(bytes, 0),
          .family = static_cast<AddressFamily>(load<std::uint8_t>(bytes, 1)),
          .type = static_cast<SubsystemType>(load<std::uint8_t>(bytes, 2)),
          .port_id = load<std::uint16_t>(bytes, 4),
          .controller_id = load<std::uint16_t>(bytes, 6),
          .admin_queue_size = load<std::uint16_t>(bytes, 8),
          .service = load_text(bytes, kService),
          .subsystem_nqn = load_text(bytes, kEntryNqn),
          .address = load_text(bytes, kAddress)};
}

}  // namespace

void encode(const IdentifyController& controller, std::span<std::byte, kIdentifyBytes> bytes) {
  clear(bytes);
  store_text(bytes, kSerial, controller.serial, ' ');
  store_text(bytes, kModel, controller.model, ' ');
  store_text(bytes, kFirmware, controller.firmware, ' ');
  store<std::uint8_t>(bytes, 76, controller.many_controllers ? kManyControllers : 0);
  store<std::uint8_t>(bytes, 77, controller.transfer_bits);
  store<std::uint16_t>(bytes, 78, controller.controller_id);
  store<std::uint32_t>(bytes, 80, controller.version);
  store<std::uint32_t>(bytes, 92, controller.events);
  store<std::uint8_t>(bytes, 111, static_cast<std::uint8_t>(controller.type));
  store<std::uint8_t>(bytes, 258, controller.aborts_max);
  store<std::uint8_t>(bytes, 259, controller.event_requests_max);
  store<std::uint8_t>(bytes, 261, controller.log_attributes);
  store<std::uint16_t>(bytes, 320, controller.keep_alive_100ms);
  store<std::uint8_t>(bytes, 512, controller.sq_entry_bits);
  store<std::uint8_t>(bytes, 513, controller.cq_entry_bits);
  store<std::uint16_t>(bytes, 514, controller.commands_max);
  store<std::uint32_t>(bytes, 516, controller.namespaces);
  store<std::uint8_t>(bytes, 525, controller.volatile_write_cache);
  store<std::uint32_t>(bytes, 536, controller.sgls);
  store_text(bytes, kSubsystemNqn, controller.subsystem_nqn, '\0');
  store<std::uint32_t>(bytes, 1792, controller.command_capsule_16b);
  store<std::uint32_t>(bytes, 1796, controller.response_capsule_16b);
  store<std::uint16_t>(bytes, 1800, controller.in_capsule_offset_16b);
}

IdentifyController decode_identify_controller(std::span<const std::byte, kIdentifyBytes> bytes) {
  const auto type = load<std::uint8_t>(bytes, 111);
  return {.serial = load_text(bytes, kSerial),
          .model = load_text(bytes, kModel),
          .firmware = load_text(bytes, kFirmware),
          .many_controllers = (load<std::uint8_t>(bytes, 76) & kManyControllers) != 0,
          .transfer_bits = load<std::uint8_t>(bytes, 77),
          .controller_id = load<std::uint16_t>(bytes, 78),
          .version = load<std::uint32_t>(bytes, 80),
          .events = load<std::uint32_t>(bytes, 92),
          .type = type == 0 ? ControllerType::io : static_cast<ControllerType>(type),
          .aborts_max = load<std::uint8_t>(bytes, 258),
          .event_requests_max = load<std::uint8_t>(bytes, 259),
          .log_attributes = load<std::uint8_t>(bytes, 261),
          .keep_alive_100ms = load<std::uint16_t>(bytes, 320),
          .commands_max = load<std::uint16_t>(bytes, 514),
          .namespaces = load<std::uint32_t>(bytes, 516),
          .volatile_write_cache = load<std::uint8_t>(bytes, 525),
          .sgls = load<std::uint32_t>(bytes, 536),
          .subsystem_nqn = load_text(bytes, kSubsystemNqn),
          .command_capsule_16b = load<std::uint32_t>(bytes, 1792),
          .response_capsule_16b = load<std::uint32_t>(bytes, 1796),
          .in_capsule_offset_16b = load<std::uint16_t>(bytes, 1800),
          .sq_entry_bits = load<std::uint8_t>(bytes, 512),
          .cq_entry_bits = load<std::uint8_t>(bytes, 513)};
}

void encode(const IdentifyNamespace& name_space, std::span<std::byte, kIdentifyBytes> bytes) {
  clear(bytes);
  store<std::uint64_t>(bytes, 0, name_space.blocks);
  store<std::uint64_t>(bytes, 8, name_space.blocks);
  store<std::uint64_t>(bytes, 16, name_space.blocks);
  store<std::uint8_t>(bytes, 29, name_space.protection);
  store<std::uint8_t>(bytes, 30, name_space.shared ? 1 : 0);
  store<std::uint8_t>(bytes, 99, name_space.read_only ? 1 : 0);
  std::copy(name_space.nguid.begin(), name_space.nguid.end(), bytes.begin() + kNguid);
  store<std::uint16_t>(bytes, kLbaFormats, name_space.metadata_bytes);
  store<std::uint8_t>(bytes, kLbaFormats + 2, name_space.block_bits);
}

IdentifyNamespace decode_identify_namespace(std::span<const std::byte, kIdentifyBytes> bytes) {
  // FLBAS: the format in use, of the 16 that every controller has room for.
  const std::size_t format = kLbaFormats + std::size_t{4} * (load<std::uint8_t>(bytes, 26) & 0xFU);
  IdentifyNamespace name_space{.blocks = load<std::uint64_t>(bytes, 0),
                               .block_bits = load<std::uint8_t>(bytes, format + 2),
                               .metadata_bytes = load<std::uint16_t>(bytes, format),
                               .protection = load<std::uint8_t>(bytes, 29),
                               .shared = (load<std::uint8_t>(bytes, 30) & 1U) != 0,
                               .read_only = (load<std::uint8_t>(bytes, 99) & 1U) != 0,
                               .nguid = {}};
  std::copy_n(bytes.begin() + kNguid, name_space.nguid.size(), name_space.nguid.begin());
  return name_space;
}

void encode_namespace_list(std::span<const std::uint32_t> ids, std::span<std::byte, kIdentifyBytes> bytes) {
  IC_ASSERT(ids.size() <= kIdentifyBytes / 4);
  clear(bytes);
  for (std::size_t i = 0; i < ids.size(); ++i) store<std::uint32_t>(bytes, 4 * i, ids[i]);
}

std::vector<std::uint32_t> decode_namespace_list(std::span<const std::byte, kIdentifyBytes> bytes) {
  std::vector<std::uint32_t> ids;
  for (std::size_t offset = 0; offset < kIdentifyBytes; offset += 4) {
    const auto id = load<std::uint32_t>(bytes, offset);
    if (id == 0) break;
    ids.push_back(id);
  }
  return ids;
}

void encode_namespace_descriptors(const Uuid& uuid, std::span<std::byte, kIdentifyBytes> bytes) {
  clear(bytes);
  store<std::uint8_t>(bytes, 0, kUuidType);
  store<std::uint8_t>(bytes, 1, kUuidBytes);
  std::copy(uuid.begin(), uuid.end(), bytes.begin() + 4);
}

Uuid decode_namespace_descriptors(std::span<const std::byte, kIdentifyBytes> bytes) {
  std::size_t at = 0;
  while (kIdentifyBytes - at >= 4) {
    const auto type = load<std::uint8_t>(bytes, at);
    const auto length = load<std::uint8_t>(bytes, at + 1);
    if (length == 0 || length > kIdentifyBytes - at - 4) break;
    if (type == kUuidType && length == kUuidBytes) {
      Uuid uuid{};
      std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(at + 4), uuid.size(), uuid.begin());
      return uuid;
    }
    at += 4 + std::size_t{length};
  }
  return {};
}

std::vector<std::byte> encode(const DiscoveryLog& log) {
  std::vector<std::byte> bytes(kDiscoveryHeaderBytes + log.entries.size() * kDiscoveryEntryBytes);
  store<std::uint64_t>(bytes, 0, log.generation);
  store<std::uint64_t>(bytes, 8, std::uint64_t{log.entries.size()});
  std::span<std::byte> rest = std::span(bytes).subspan(kDiscoveryHeaderBytes);
  for (const DiscoveryEntry& entry : log.entries) {
    encode_entry(entry, rest.first(kDiscoveryEntryBytes));
    rest = rest.subspan(kDiscoveryEntryBytes);
  }
  return bytes;
}

Result<DiscoveryHeader> decode_discovery_header(std::span<const std::byte> bytes) {
  if (bytes.size() < 18) return Error(ErrorCode::corrupt, "a discovery log page ends within its header");
  if (load<std::uint16_t>(bytes, 16) != 0) {
    return Error(ErrorCode::unsupported, "a discovery log page has record format " +
                                             std::to_string(load<std::uint16_t>(bytes, 16)) +
                                             ", and only format 0 is known");
  }
  const DiscoveryHeader header{.generation = load<std::uint64_t>(bytes, 0), .entries = load<std::uint64_t>(bytes, 8)};
  if (header.entries > kDiscoveryEntriesMax) {
    return Error(ErrorCode::corrupt, "a discovery log page announces " + std::to_string(header.entries) +
                                         " entries, over the limit of " + std::to_string(kDiscoveryEntriesMax));
  }
  return header;
}

Result<DiscoveryLog> decode_discovery_log(std::span<const std::byte> bytes) {
  IC_TRY(const DiscoveryHeader header, decode_discovery_header(bytes));
  if (bytes.size() < kDiscoveryHeaderBytes ||
      (bytes.size() - kDiscoveryHeaderBytes) / kDiscoveryEntryBytes < header.entries) {
    return Error(ErrorCode::corrupt, "a discovery log page of " + std::to_string(bytes.size()) +
                                         " bytes is too short for its " + std::to_string(header.entries) + " entries");
  }
  DiscoveryLog log{.generation = header.generation, .entries = {}};
  for (std::uint64_t i = 0; i < header.entries; ++i) {
    log.entries.push_back(
        decode_entry(bytes.subspan(kDiscoveryHeaderBytes + i * kDiscoveryEntryBytes, kDiscoveryEntryBytes)));
  }
  return log;
}

}  // namespace infercluster::nvme
