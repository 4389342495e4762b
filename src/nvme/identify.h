// SPDX-License-Identifier: Apache-2.0
// What Identify and Get Log Page answer: NVM Express Base Specification 2.0, sections 5.17.2 and 5.16.1, and NVM
// Command Set Specification 1.0, section 4.1.5. Only the fields that one of our sides sets or reads; all others are
// zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "nvme/fabrics.h"

namespace infercluster::nvme {

inline constexpr std::size_t kIdentifyBytes = 4096;

enum class ControllerType : std::uint8_t { io = 1, discovery = 2 };

struct IdentifyController {
  std::string serial{};             // at most 20 bytes of ASCII
  std::string model{};              // 40
  std::string firmware{};           // 8
  bool many_controllers = false;    // CMIC bit 1: the subsystem has, or may have, two or more
  std::uint8_t transfer_bits = 0;   // MDTS: a command moves at most 2^transfer_bits pages of 4 KiB; 0: no limit
  std::uint16_t controller_id = 0;  // CNTLID
  std::uint32_t version = 0;
  std::uint32_t events = 0;                  // OAES
  ControllerType type = ControllerType::io;  // CNTRLTYPE; 0 of old controllers reads as io
  std::uint8_t aborts_max = 0;               // ACL, - 1
  std::uint8_t event_requests_max = 0;       // AERL, - 1
  std::uint8_t log_attributes = 0;           // LPA
  std::uint16_t keep_alive_100ms = 0;        // KAS: granularity
  std::uint16_t commands_max = 0;            // MAXCMD
  std::uint32_t namespaces = 0;              // NN
  std::uint8_t volatile_write_cache = 0;     // VWC
  std::uint32_t sgls = 0;                    // SGLS
  std::string subsystem_nqn{};               // SUBNQN
  std::uint32_t command_capsule_16b = 0;     // IOCCSZ: 4 is a command without data
  std::uint32_t response_capsule_16b = 0;    // IORCSZ: 1
  std::uint16_t in_capsule_offset_16b = 0;   // ICDOFF
  std::uint8_t sq_entry_bits = 0x66;         // SQES
  std::uint8_t cq_entry_bits = 0x44;         // CQES
  bool operator==(const IdentifyController&) const = default;
};
inline constexpr std::uint32_t kSglsSupported = 1U << 0;
inline constexpr std::uint32_t kSglsInCapsuleOffset = 1U << 20;
inline constexpr std::uint32_t kSglsTransport = 1U << 21;
inline constexpr std::uint8_t kLogLongOffsets = 1U << 2;  // of log_attributes
void encode(const IdentifyController& controller, std::span<std::byte, kIdentifyBytes> bytes);
IdentifyController decode_identify_controller(std::span<const std::byte, kIdentifyBytes> bytes);

struct IdentifyNamespace {
  std::uint64_t blocks = 0;          // NSZE, NCAP and NUSE; 0: no such namespace
  std::uint8_t block_bits = 12;      // LBADS of the format in use
  std::uint16_t metadata_bytes = 0;  // MS of the format in use: ours have none
  std::uint8_t protection = 0;       // DPS: likewise
  bool shared = false;               // NMIC bit 0
  bool read_only = false;            // NSATTR bit 0
  Uuid nguid{};                      // zero: none
  bool operator==(const IdentifyNamespace&) const = default;
};
void encode(const IdentifyNamespace& name_space, std::span<std::byte, kIdentifyBytes> bytes);
IdentifyNamespace decode_identify_namespace(std::span<const std::byte, kIdentifyBytes> bytes);

// Ascending, at most 1,024 of them in one list.
void encode_namespace_list(std::span<const std::uint32_t> ids, std::span<std::byte, kIdentifyBytes> bytes);
std::vector<std::uint32_t> decode_namespace_list(std::span<const std::byte, kIdentifyBytes> bytes);

// Namespace identification descriptors: a UUID alone is what we write. Reading ends at the first that makes no sense;
// zero: there was no UUID.
void encode_namespace_descriptors(const Uuid& uuid, std::span<std::byte, kIdentifyBytes> bytes);
Uuid decode_namespace_descriptors(std::span<const std::byte, kIdentifyBytes> bytes);

// One entry of the discovery log page (section 5.16.1.23).
inline constexpr std::size_t kDiscoveryHeaderBytes = 1024;
inline constexpr std::size_t kDiscoveryEntryBytes = 1024;
inline constexpr std::uint64_t kDiscoveryEntriesMax = 4096;  // our limit for what a peer announces
inline constexpr std::uint8_t kTransportTcp = 3;
enum class AddressFamily : std::uint8_t { none = 0, ipv4 = 1, ipv6 = 2 };
enum class SubsystemType : std::uint8_t { referral = 1, nvm = 2, current_discovery = 3 };
struct DiscoveryEntry {
  std::uint8_t transport = kTransportTcp;
  AddressFamily family = AddressFamily::ipv4;
  SubsystemType type = SubsystemType::nvm;
  std::uint16_t port_id = 0;
  std::uint16_t controller_id = kAnyController;
  std::uint16_t admin_queue_size = 32;
  std::string service{};  // TRSVCID: the port, in digits
  std::string subsystem_nqn{};
  std::string address{};  // TRADDR
  bool operator==(const DiscoveryEntry&) const = default;
};
struct DiscoveryLog {
  std::uint64_t generation = 0;
  std::vector<DiscoveryEntry> entries{};
  bool operator==(const DiscoveryLog&) const = default;
};
std::vector<std::byte> encode(const DiscoveryLog& log);
struct DiscoveryHeader {
  std::uint64_t generation = 0;
  std::uint64_t entries = 0;
};
// Errors: corrupt (too short; more entries than kDiscoveryEntriesMax); unsupported (a record format other than 0).
Result<DiscoveryHeader> decode_discovery_header(std::span<const std::byte> bytes);
// A whole log page. Errors: those of the header; corrupt (fewer bytes than its entries need).
Result<DiscoveryLog> decode_discovery_log(std::span<const std::byte> bytes);

}  // namespace infercluster::nvme
