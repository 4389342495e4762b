// SPDX-License-Identifier: Apache-2.0
// Fabrics commands and controller properties: NVM Express Base Specification 2.0, sections 6 and 3.1.3.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "nvme/command.h"

namespace infercluster::nvme {

enum class FabricsType : std::uint8_t {
  property_set = 0x00,
  connect = 0x01,
  property_get = 0x04,
  authentication_send = 0x05,
  authentication_receive = 0x06,
  disconnect = 0x08,
};
FabricsType fabrics_type(const Command& command);  // may be none of those that are named

inline constexpr std::size_t kNqnBytesMax = 223;  // section 4.5, without the NUL
inline constexpr const char* kDiscoveryNqn = "nqn.2014-08.org.nvmexpress.discovery";
// Errors: invalid_argument (empty, too long, not "nqn.", bytes outside of printable ASCII).
Status check_nqn(std::string_view nqn);

using Uuid = std::array<std::byte, 16>;  // in the order in which it is written (RFC 4122)
// "f81d4fae-7dec-11d0-a765-00a0c91e6bf6". Errors of parsing: invalid_argument.
std::string to_string(const Uuid& uuid);
Result<Uuid> parse_uuid(std::string_view text);

// Connect: opens a queue (section 6.3). Its 1,024 bytes of data always lie in the capsule.
inline constexpr std::size_t kConnectDataBytes = 1024;
inline constexpr std::uint16_t kAnyController = 0xFFFF;
inline constexpr std::uint8_t kConnectNoFlowControl = 1U << 2;  // of `attributes`: the host does not read SQ heads
struct Connect {
  std::uint16_t format = 0;  // 0 is all there is
  std::uint16_t queue_id = 0;
  std::uint16_t queue_size = 0;  // entries - 1
  std::uint8_t attributes = 0;
  std::uint32_t keep_alive_ms = 0;  // admin queue; 0: none
  bool operator==(const Connect&) const = default;
};
struct ConnectData {
  Uuid host_id{};
  std::uint16_t controller_id = kAnyController;
  std::string subsystem_nqn{};
  std::string host_nqn{};
  bool operator==(const ConnectData&) const = default;
};
Command encode_connect(const Connect& connect);
Connect decode_connect(const Command& command);
void encode(const ConnectData& data, std::span<std::byte, kConnectDataBytes> bytes);
ConnectData decode_connect_data(std::span<const std::byte, kConnectDataBytes> bytes);

// The result of a Connect that was accepted.
struct Connected {
  std::uint16_t controller_id = 0;
  bool authentication_required = false;  // ATR: in-band authentication comes next
  bool operator==(const Connected&) const = default;
};
std::uint64_t encode(const Connected& connected);
Connected decode_connected(std::uint64_t result);
// The result beside kConnectInvalidParameters: where the parameter is that was refused.
enum class ConnectPart : std::uint8_t { command = 0, data = 1 };
std::uint64_t encode_refused_parameter(ConnectPart part, std::uint16_t offset);

// Properties (section 3.1.3): offsets, and the fields of their values.
inline constexpr std::uint32_t kPropertyCapabilities = 0x00;   // 8 bytes
inline constexpr std::uint32_t kPropertyVersion = 0x08;        // 4 bytes
inline constexpr std::uint32_t kPropertyConfiguration = 0x14;  // 4 bytes
inline constexpr std::uint32_t kPropertyStatus = 0x1C;         // 4 bytes
inline constexpr std::uint32_t kVersion14 = 0x00010400;

struct PropertyAccess {
  std::uint32_t offset = 0;
  std::uint8_t bytes = 4;   // 4 or 8; 0: a size that does not exist
  std::uint64_t value = 0;  // of a set
  bool operator==(const PropertyAccess&) const = default;
};
Command encode_property_get(const PropertyAccess& access);
Command encode_property_set(const PropertyAccess& access);
PropertyAccess decode_property(const Command& command);

struct Capabilities {                   // CAP
  std::uint16_t queue_entries_max = 0;  // MQES: entries - 1
  bool contiguous_queues = true;        // CQR
  std::uint8_t timeout_500ms = 0;       // TO: how long a change of CC.EN may take
  bool nvm_command_set = true;          // CSS bit 37
  std::uint8_t page_bits_min = 0;       // MPSMIN: log2(page) - 12
  bool operator==(const Capabilities&) const = default;
};
std::uint64_t encode(const Capabilities& capabilities);
Capabilities decode_capabilities(std::uint64_t value);

enum class Shutdown : std::uint8_t { none = 0, normal = 1, abrupt = 2 };
struct Configuration {  // CC
  bool enable = false;
  std::uint8_t command_set = 0;
  std::uint8_t page_bits = 0;      // MPS: log2(page) - 12
  std::uint8_t arbitration = 0;    // AMS
  std::uint8_t shutdown = 0;       // Shutdown, or 3
  std::uint8_t sq_entry_bits = 0;  // IOSQES: 6
  std::uint8_t cq_entry_bits = 0;  // IOCQES: 4
  bool operator==(const Configuration&) const = default;
};
std::uint32_t encode(const Configuration& configuration);
Configuration decode_configuration(std::uint32_t value);

struct ControllerStatus {  // CSTS
  bool ready = false;
  bool fatal = false;
  std::uint8_t shutdown = 0;  // 0 none, 1 under way, 2 complete
  bool operator==(const ControllerStatus&) const = default;
};
std::uint32_t encode(const ControllerStatus& status);
ControllerStatus decode_controller_status(std::uint32_t value);

// Authentication Send and Receive (sections 6.2 and 6.1): how many bytes, of the DH-HMAC-CHAP protocol.
inline constexpr std::uint8_t kSecurityProtocolNvme = 0xE9;
struct AuthenticationTransfer {
  std::uint8_t protocol = kSecurityProtocolNvme;  // SECP
  std::uint16_t specific = 0x0101;                // SPSP0, SPSP1
  std::uint32_t length = 0;                       // bytes
  bool operator==(const AuthenticationTransfer&) const = default;
};
Command encode_authentication(FabricsType type, const AuthenticationTransfer& transfer);
AuthenticationTransfer decode_authentication(const Command& command);

}  // namespace infercluster::nvme
