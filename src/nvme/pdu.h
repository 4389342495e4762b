// SPDX-License-Identifier: Apache-2.0
// Protocol data units of NVMe/TCP: NVMe over TCP Transport Specification 1.0, section 3.6. Little-endian. A PDU is a
// header, its digest, padding, data and the data's digest; the last four may be absent.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "nvme/command.h"

namespace infercluster::nvme {

enum class PduType : std::uint8_t {
  initialize_request = 0x00,   // ICReq
  initialize_response = 0x01,  // ICResp
  host_terminate = 0x02,       // H2CTermReq
  target_terminate = 0x03,     // C2HTermReq
  command = 0x04,              // CapsuleCmd
  response = 0x05,             // CapsuleResp
  host_data = 0x06,            // H2CData
  target_data = 0x07,          // C2HData
  ready = 0x09,                // R2T
};
std::string_view name_of(PduType type);

inline constexpr std::size_t kCommonHeaderBytes = 8;
inline constexpr std::size_t kHeaderBytesMax = 128;
inline constexpr std::size_t kDigestBytes = 4;
inline constexpr std::uint8_t kHeaderDigestFlag = 1U << 0;
inline constexpr std::uint8_t kDataDigestFlag = 1U << 1;
inline constexpr std::uint8_t kLastFlag = 1U << 2;
inline constexpr std::uint8_t kSuccessFlag = 1U << 3;  // with kLastFlag: no response follows, the command succeeded

// What both sides agreed on.
struct Digests {
  bool header = false;
  bool data = false;
  bool operator==(const Digests&) const = default;
};

// The first eight bytes. Lengths are in bytes.
struct CommonHeader {
  PduType type = PduType::initialize_request;
  std::uint8_t flags = 0;
  std::uint8_t header_length = 0;  // HLEN, without its digest
  std::uint8_t data_offset = 0;    // PDO, from the PDU's beginning; 0: no data
  std::uint32_t length = 0;        // PLEN, of the whole PDU
  bool operator==(const CommonHeader&) const = default;
};
void encode(const CommonHeader& header, std::span<std::byte, kCommonHeaderBytes> bytes);
CommonHeader decode_common_header(std::span<const std::byte, kCommonHeaderBytes> bytes);

struct InitializeRequest {
  std::uint16_t format = 0;     // PFV
  std::uint8_t alignment = 0;   // HPDA: data to the host begins at multiples of 4 * (alignment + 1)
  Digests digests{};            // what the host would like
  std::uint32_t ready_max = 0;  // MAXR2T, - 1
  bool operator==(const InitializeRequest&) const = default;
};
struct InitializeResponse {
  std::uint16_t format = 0;
  std::uint8_t alignment = 0;       // CPDA: likewise, for data to the target
  Digests digests{};                // what is used
  std::uint32_t host_data_max = 0;  // MAXH2CDATA, bytes in one H2CData
  bool operator==(const InitializeResponse&) const = default;
};

// Why a side ends the connection (section 3.6.2.4, FES).
enum class FatalStatus : std::uint16_t {
  invalid_header_field = 1,
  sequence_error = 2,
  header_digest_error = 3,
  data_out_of_range = 4,
  ready_limit_exceeded = 5,
  unsupported_parameter = 6,
};
std::string_view name_of(FatalStatus status);
// After these 24 bytes come at most 128 of the PDU that was at fault.
struct Terminate {
  FatalStatus status = FatalStatus::invalid_header_field;
  std::uint32_t information = 0;  // FEI: the field's offset, or the digest that was received
  bool operator==(const Terminate&) const = default;
};
inline constexpr std::size_t kTerminateDataMax = 128;

struct DataHeader {  // of H2CData and C2HData
  std::uint16_t cid = 0;
  std::uint16_t tag = 0;     // TTAG, of H2CData
  std::uint32_t offset = 0;  // of the command's data
  std::uint32_t length = 0;
  bool operator==(const DataHeader&) const = default;
};
struct ReadyToTransfer {
  std::uint16_t cid = 0;
  std::uint16_t tag = 0;
  std::uint32_t offset = 0;
  std::uint32_t length = 0;
  bool operator==(const ReadyToTransfer&) const = default;
};

using PduBody =
    std::variant<InitializeRequest, InitializeResponse, Terminate, Command, Completion, DataHeader, ReadyToTransfer>;

struct Pdu {
  PduType type = PduType::initialize_request;
  std::uint8_t flags = 0;  // without those of the digests
  PduBody body;
  bool operator==(const Pdu&) const = default;
};

// HLEN of a type; nullopt for types that do not exist.
std::optional<std::uint8_t> header_length(PduType type);

// A header as it is sent, without its digest, for `data_length` bytes of data. Sets PLEN, PDO and the digest flags for
// a data offset that is a multiple of `data_alignment` (bytes, a multiple of 4). Returns how many bytes of `bytes` it
// took.
struct DataLayout {
  Digests digests{};  // none for the two of initialization and for terminations
  std::uint32_t data_length = 0;
  std::uint32_t data_alignment = 4;
};
std::size_t encode_header(const Pdu& pdu, const DataLayout& layout, std::span<std::byte, kHeaderBytesMax> bytes);

// All in front of the data: the header, its digest and the padding. `bytes` has room for kPreludeBytesMax.
inline constexpr std::size_t kPreludeBytesMax = 256;
std::size_t encode_prelude(const Pdu& pdu, const DataLayout& layout, std::span<std::byte, kPreludeBytesMax> bytes);

// The whole PDU, as it goes over the wire.
std::vector<std::byte> encode_pdu(const Pdu& pdu, Digests digests, std::span<const std::byte> data = {},
                                  std::uint32_t data_alignment = 4);

// A header whose common part was checked (see PduReader).
Pdu decode_header(std::span<const std::byte> bytes);

// The digest of a header, or of data: CRC32C, sent little-endian.
std::uint32_t digest_of(std::span<const std::byte> bytes);

}  // namespace infercluster::nvme
