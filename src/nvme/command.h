// SPDX-License-Identifier: Apache-2.0
// Commands and completions: NVM Express Base Specification 2.0, sections 3.3.3.1 (submission queue entry), 3.3.3.2
// (completion queue entry) and 4.1.2 (SGL); Fabrics commands in section 6. Nothing here knows a transport.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "nvme/status.h"

namespace infercluster::nvme {

inline constexpr std::size_t kCommandBytes = 64;
inline constexpr std::size_t kCompletionBytes = 16;

// Opcodes of the admin queue. Fabrics commands go on every queue.
inline constexpr std::uint8_t kGetLogPage = 0x02;
inline constexpr std::uint8_t kIdentify = 0x06;
inline constexpr std::uint8_t kAbort = 0x08;
inline constexpr std::uint8_t kSetFeatures = 0x09;
inline constexpr std::uint8_t kGetFeatures = 0x0A;
inline constexpr std::uint8_t kAsyncEventRequest = 0x0C;
inline constexpr std::uint8_t kKeepAlive = 0x18;
inline constexpr std::uint8_t kFabrics = 0x7F;
// Opcodes of I/O queues (NVM Command Set Specification 1.0).
inline constexpr std::uint8_t kFlush = 0x00;
inline constexpr std::uint8_t kWrite = 0x01;
inline constexpr std::uint8_t kRead = 0x02;
inline constexpr std::uint8_t kWriteUncorrectable = 0x04;
inline constexpr std::uint8_t kWriteZeroes = 0x08;
inline constexpr std::uint8_t kDatasetManagement = 0x09;

// One SGL descriptor: where a command's data is. `identifier` is type << 4 | subtype.
struct SglDescriptor {
  std::uint64_t address = 0;
  std::uint32_t length = 0;  // bytes
  std::uint8_t identifier = 0;
  bool operator==(const SglDescriptor&) const = default;
};
inline constexpr std::uint8_t kSglInCapsule = 0x01;  // data block, the address is an offset behind the command
inline constexpr std::uint8_t kSglTransport =
    0x5A;  // transport data block: the host's memory, which the transport knows

// A submission queue entry. For Fabrics commands `nsid` holds the command type in its lowest byte.
struct Command {
  std::uint8_t opcode = 0;
  std::uint8_t flags = 0x40;  // bits 7:6 = 01b: SGLs are used, as over fabrics they must
  std::uint16_t cid = 0;      // the host's own name for the command: to be echoed, and nothing else
  std::uint32_t nsid = 0;
  SglDescriptor sgl{};
  std::array<std::uint32_t, 6> dwords{};  // command dwords 10 to 15

  [[nodiscard]] std::uint32_t dword(std::size_t index) const;  // 10 to 15
  bool operator==(const Command&) const = default;
};
void encode(const Command& command, std::span<std::byte, kCommandBytes> bytes);
Command decode_command(std::span<const std::byte, kCommandBytes> bytes);

// A completion queue entry.
struct Completion {
  std::uint64_t result = 0;   // dwords 0 and 1
  std::uint16_t sq_head = 0;  // how far the controller has read the submission queue; FFFFh: without flow control
  std::uint16_t sq_id = 0;    // 0 over fabrics
  std::uint16_t cid = 0;
  CommandStatus status{};
  bool operator==(const Completion&) const = default;
};
void encode(const Completion& completion, std::span<std::byte, kCompletionBytes> bytes);
Completion decode_completion(std::span<const std::byte, kCompletionBytes> bytes);

// What a Read names (NVM Command Set 1.0, section 3.2.4).
struct ReadCommand {
  std::uint64_t first_block = 0;
  std::uint32_t blocks = 0;  // 1 to 65,536
  bool operator==(const ReadCommand&) const = default;
};
Command encode_read(const ReadCommand& read, std::uint32_t nsid);
ReadCommand decode_read(const Command& command);

// Identify (section 5.17): which data structure (CNS) of which controller or namespace.
inline constexpr std::uint8_t kCnsNamespace = 0x00;
inline constexpr std::uint8_t kCnsController = 0x01;
inline constexpr std::uint8_t kCnsActiveNamespaces = 0x02;
inline constexpr std::uint8_t kCnsNamespaceDescriptors = 0x03;
Command encode_identify(std::uint8_t cns, std::uint32_t nsid);

// Get Log Page (section 5.16).
struct LogRequest {
  std::uint8_t page = 0;
  bool retain_event = false;  // RAE
  std::uint64_t offset = 0;   // bytes, a multiple of 4
  std::uint64_t length = 0;   // bytes, a multiple of 4, 4 to 2^34
  bool operator==(const LogRequest&) const = default;
};
inline constexpr std::uint8_t kLogErrors = 0x01;
inline constexpr std::uint8_t kLogHealth = 0x02;
inline constexpr std::uint8_t kLogFirmware = 0x03;
inline constexpr std::uint8_t kLogChangedNamespaces = 0x04;
inline constexpr std::uint8_t kLogDiscovery = 0x70;
Command encode_log_request(const LogRequest& request);
LogRequest decode_log_request(const Command& command);

// Set Features and Get Features (sections 5.27 and 5.15).
inline constexpr std::uint8_t kFeatureQueues = 0x07;       // dword 11 and result: submission - 1 | completion - 1 << 16
inline constexpr std::uint8_t kFeatureAsyncEvents = 0x0B;  // dword 11: which events are told
inline constexpr std::uint8_t kFeatureKeepAlive = 0x0F;    // dword 11 and result: milliseconds
Command encode_set_features(std::uint8_t feature, std::uint32_t value);

}  // namespace infercluster::nvme
