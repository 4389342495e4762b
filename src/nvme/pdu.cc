// SPDX-License-Identifier: Apache-2.0
#include "nvme/pdu.h"

#include <algorithm>

#include "base/assert.h"
#include "base/units.h"
#include "checksum/crc32c.h"
#include "nvme/bytes.h"

namespace infercluster::nvme {
namespace {

constexpr std::size_t kBody = kCommonHeaderBytes;

Digests digests_of(std::uint8_t bits) {
  return {.header = (bits & kHeaderDigestFlag) != 0, .data = (bits & kDataDigestFlag) != 0};
}
std::uint8_t bits_of(Digests digests) {
  return static_cast<std::uint8_t>((digests.header ? kHeaderDigestFlag : 0) | (digests.data ? kDataDigestFlag : 0));
}

void put(const InitializeRequest& request, std::span<std::byte> bytes) {
  store<std::uint16_t>(bytes, 8, request.format);
  store<std::uint8_t>(bytes, 10, request.alignment);
  store<std::uint8_t>(bytes, 11, bits_of(request.digests));
  store<std::uint32_t>(bytes, 12, request.ready_max);
}
void put(const InitializeResponse& response, std::span<std::byte> bytes) {
  store<std::uint16_t>(bytes, 8, response.format);
  store<std::uint8_t>(bytes, 10, response.alignment);
  store<std::uint8_t>(bytes, 11, bits_of(response.digests));
  store<std::uint32_t>(bytes, 12, response.host_data_max);
}
void put(const Terminate& terminate, std::span<std::byte> bytes) {
  store<std::uint16_t>(bytes, 8, static_cast<std::uint16_t>(terminate.status));
  store<std::uint32_t>(bytes, 10, terminate.information);
}
void put(const Command& command, std::span<std::byte> bytes) {
  encode(command, bytes.subspan<kBody, kCommandBytes>());
}
void put(const Completion& completion, std::span<std::byte> bytes) {
  encode(completion, bytes.subspan<kBody, kCompletionBytes>());
}
void put(const DataHeader& data, std::span<std::byte> bytes) {
  store<std::uint16_t>(bytes, 8, data.cid);
  store<std::uint16_t>(bytes, 10, data.tag);
  store<std::uint32_t>(bytes, 12, data.offset);
  store<std::uint32_t>(bytes, 16, data.length);
}
void put(const ReadyToTransfer& ready, std::span<std::byte> bytes) {
  put(DataHeader{.cid = ready.cid, .tag = ready.tag, .offset = ready.offset, .length = ready.length}, bytes);
}

DataHeader get_data(std::span<const std::byte> bytes) {
  return {.cid = load<std::uint16_t>(bytes, 8),
          .tag = load<std::uint16_t>(bytes, 10),
          .offset = load<std::uint32_t>(bytes, 12),
          .length = load<std::uint32_t>(bytes, 16)};
}

PduBody get(PduType type, std::span<const std::byte> bytes) {
  switch (type) {
    case PduType::initialize_request:
      return InitializeRequest{.format = load<std::uint16_t>(bytes, 8),
                               .alignment = load<std::uint8_t>(bytes, 10),
                               .digests = digests_of(load<std::uint8_t>(bytes, 11)),
                               .ready_max = load<std::uint32_t>(bytes, 12)};
    case PduType::initialize_response:
      return InitializeResponse{.format = load<std::uint16_t>(bytes, 8),
                                .alignment = load<std::uint8_t>(bytes, 10),
                                .digests = digests_of(load<std::uint8_t>(bytes, 11)),
                                .host_data_max = load<std::uint32_t>(bytes, 12)};
    case PduType::host_terminate:
    case PduType::target_terminate:
      return Terminate{.status = static_cast<FatalStatus>(load<std::uint16_t>(bytes, 8)),
                       .information = load<std::uint32_t>(bytes, 10)};
    case PduType::command:
      return decode_command(bytes.subspan<kBody, kCommandBytes>());
    case PduType::response:
      return decode_completion(bytes.subspan<kBody, kCompletionBytes>());
    case PduType::host_data:
    case PduType::target_data:
      return get_data(bytes);
    case PduType::ready: {
      const DataHeader fields = get_data(bytes);
      return ReadyToTransfer{.cid = fields.cid, .tag = fields.tag, .offset = fields.offset, .length = fields.length};
    }
  }
  IC_FAIL("a PDU of a type that was not checked");
}

bool bears_digests(PduType type) {
  return type != PduType::initialize_request && type != PduType::initialize_response &&
         type != PduType::host_terminate && type != PduType::target_terminate;
}

}  // namespace

std::string_view name_of(PduType type) {
  switch (type) {
    case PduType::initialize_request:
      return "ICReq";
    case PduType::initialize_response:
      return "ICResp";
    case PduType::host_terminate:
      return "H2CTermReq";
    case PduType::target_terminate:
      return "C2HTermReq";
    case PduType::command:
      return "CapsuleCmd";
    case PduType::response:
      return "CapsuleResp";
    case PduType::host_data:
      return "H2CData";
    case PduType::target_data:
      return "C2HData";
    case PduType::ready:
      return "R2T";
  }
  return "a PDU of unknown type";
}

std::string_view name_of(FatalStatus status) {
  switch (status) {
    case FatalStatus::invalid_header_field:
      return "invalid PDU header field";
    case FatalStatus::sequence_error:
      return "PDU sequence error";
    case FatalStatus::header_digest_error:
      return "header digest error";
    case FatalStatus::data_out_of_range:
      return "data transfer out of range";
    case FatalStatus::ready_limit_exceeded:
      return "R2T limit exceeded";
    case FatalStatus::unsupported_parameter:
      return "unsupported parameter";
  }
  return "an unknown fatal error";
}

std::optional<std::uint8_t> header_length(PduType type) {
  switch (type) {
    case PduType::initialize_request:
    case PduType::initialize_response:
      return 128;
    case PduType::command:
      return 72;
    case PduType::host_terminate:
    case PduType::target_terminate:
    case PduType::response:
    case PduType::host_data:
    case PduType::target_data:
    case PduType::ready:
      return 24;
  }
  return std::nullopt;
}

void encode(const CommonHeader& header, std::span<std::byte, kCommonHeaderBytes> bytes) {
  store<std::uint8_t>(bytes, 0, static_cast<std::uint8_t>(header.type));
  store<std::uint8_t>(bytes, 1, header.flags);
  store<std::uint8_t>(bytes, 2, header.header_length);
  store<std::uint8_t>(bytes, 3, header.data_offset);
  store<std::uint32_t>(bytes, 4, header.length);
}

CommonHeader decode_common_header(std::span<const std::byte, kCommonHeaderBytes> bytes) {
  return {.type = static_cast<PduType>(load<std::uint8_t>(bytes, 0)),
          .flags = load<std::uint8_t>(bytes, 1),
          .header_length = load<std::uint8_t>(bytes, 2),
          .data_offset = load<std::uint8_t>(bytes, 3),
          .length = load<std::uint32_t>(bytes, 4)};
}

std::size_t encode_header(const Pdu& pdu, const DataLayout& layout, std::span<std::byte, kHeaderBytesMax> bytes) {
  const std::optional<std::uint8_t> known = header_length(pdu.type);
  IC_ASSERT(known.has_value());
  IC_ASSERT(layout.data_alignment % 4 == 0 && layout.data_alignment > 0 && layout.data_alignment <= 128);
  const std::size_t length = *known;
  const bool digests = bears_digests(pdu.type);
  const bool header_digest = digests && layout.digests.header;
  const bool data_digest = digests && layout.digests.data && layout.data_length > 0;
  const std::size_t digested = length + (header_digest ? kDigestBytes : 0);

  CommonHeader common{.type = pdu.type, .flags = pdu.flags, .header_length = *known, .data_offset = 0, .length = 0};
  if (header_digest) common.flags |= kHeaderDigestFlag;
  if (data_digest) common.flags |= kDataDigestFlag;
  std::size_t whole = digested;
  if (layout.data_length > 0 && digests) {
    const std::size_t offset = (digested + layout.data_alignment - 1) / layout.data_alignment * layout.data_alignment;
    IC_ASSERT(offset <= UINT8_MAX && layout.data_length <= UINT32_MAX - 2 * kPreludeBytesMax);
    common.data_offset = static_cast<std::uint8_t>(offset);
    whole = offset + layout.data_length + (data_digest ? kDigestBytes : 0);
  } else if (layout.data_length > 0) {
    // The data of a termination follows its header directly, and PDO is reserved there.
    IC_ASSERT(layout.data_length <= kTerminateDataMax);
    whole = length + layout.data_length;
  }
  common.length = static_cast<std::uint32_t>(whole);

  std::fill_n(bytes.begin(), length, std::byte{0});
  encode(common, bytes.first<kCommonHeaderBytes>());
  std::visit([&](const auto& body) { put(body, bytes); }, pdu.body);
  return length;
}

std::size_t encode_prelude(const Pdu& pdu, const DataLayout& layout, std::span<std::byte, kPreludeBytesMax> bytes) {
  std::size_t length = encode_header(pdu, layout, bytes.first<kHeaderBytesMax>());
  const CommonHeader common = decode_common_header(bytes.first<kCommonHeaderBytes>());
  if ((common.flags & kHeaderDigestFlag) != 0) {
    store<std::uint32_t>(bytes, length, digest_of(bytes.first(length)));
    length += kDigestBytes;
  }
  if (common.data_offset == 0) return length;
  std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(length), bytes.begin() + common.data_offset, std::byte{0});
  return common.data_offset;
}

std::vector<std::byte> encode_pdu(const Pdu& pdu, Digests digests, std::span<const std::byte> data,
                                  std::uint32_t data_alignment) {
  std::array<std::byte, kPreludeBytesMax> prelude{};
  const std::size_t length = encode_prelude(
      pdu,
      {.digests = digests, .data_length = static_cast<std::uint32_t>(data.size()), .data_alignment = data_alignment},
      prelude);
  std::vector<std::byte> bytes(prelude.begin(), prelude.begin() + static_cast<std::ptrdiff_t>(length));
  bytes.insert(bytes.end(), data.begin(), data.end());
  const CommonHeader common = decode_common_header(std::span(prelude).first<kCommonHeaderBytes>());
  if ((common.flags & kDataDigestFlag) != 0) {
    bytes.resize(bytes.size() + kDigestBytes);
    store<std::uint32_t>(bytes, bytes.size() - kDigestBytes, digest_of(data));
  }
  return bytes;
}

Pdu decode_header(std::span<const std::byte> bytes) {
  IC_ASSERT(bytes.size() >= kCommonHeaderBytes);
  const CommonHeader common = decode_common_header(bytes.first<kCommonHeaderBytes>());
  const std::optional<std::uint8_t> known = header_length(common.type);
  IC_ASSERT(known.has_value() && bytes.size() >= *known);
  constexpr auto kDigestFlags = static_cast<std::uint8_t>(kHeaderDigestFlag | kDataDigestFlag);
  return {.type = common.type,
          .flags = static_cast<std::uint8_t>(common.flags & ~kDigestFlags),
          .body = get(common.type, bytes)};
}

std::uint32_t digest_of(std::span<const std::byte> bytes) {
  return checksum::crc32c(bytes);
}

}  // namespace infercluster::nvme
