// SPDX-License-Identifier: Apache-2.0
#include "nvme/pdu_reader.h"

#include <algorithm>

#include "base/assert.h"
#include "checksum/crc32c.h"
#include "nvme/bytes.h"

namespace infercluster::nvme {
namespace {

// Offsets of the common header's fields: what a termination names as the field at fault.
constexpr std::uint32_t kFlagsField = 1;
constexpr std::uint32_t kHeaderLengthField = 2;
constexpr std::uint32_t kDataOffsetField = 3;
constexpr std::uint32_t kLengthField = 4;
constexpr std::uint32_t kDataLengthField = 16;

bool is_initialization(PduType type) {
  return type == PduType::initialize_request || type == PduType::initialize_response;
}
bool is_termination(PduType type) {
  return type == PduType::host_terminate || type == PduType::target_terminate;
}
bool is_data(PduType type) {
  return type == PduType::host_data || type == PduType::target_data;
}

}  // namespace

std::span<std::byte> PduReader::room() {
  if (begin_next_) next();
  switch (state_) {
    case State::common:
    case State::header:
      return std::span(header_).subspan(have_, need_ - have_);
    case State::padding:
      return std::span(dropped_).first(std::min<std::size_t>(padding_left_, dropped_.size()));
    case State::data: {
      const std::uint32_t left = data_length_ - data_have_;
      return place_.empty() ? std::span(dropped_).first(std::min<std::size_t>(left, dropped_.size()))
                            : place_.subspan(data_have_);
    }
    case State::digest:
      return std::span(digest_).subspan(digest_have_);
  }
  IC_FAIL("a reader of PDUs in no state");
}

PduReader::Progress PduReader::filled(std::size_t count) {
  const std::span<std::byte> bytes = room();
  IC_ASSERT(count <= bytes.size());
  switch (state_) {
    case State::common:
      have_ += count;
      return have_ == need_ ? common_complete() : Progress::more;
    case State::header:
      have_ += count;
      return have_ == need_ ? header_complete() : Progress::more;
    case State::padding:
      padding_left_ -= static_cast<std::uint32_t>(count);
      return padding_left_ == 0 ? data_begins() : Progress::more;
    case State::data:
      if (has_data_digest_) data_crc_ = checksum::crc32c(bytes.first(count), data_crc_);
      data_have_ += static_cast<std::uint32_t>(count);
      return data_have_ == data_length_ ? data_complete() : Progress::more;
    case State::digest:
      digest_have_ += count;
      return digest_have_ == digest_.size() ? digest_complete() : Progress::more;
  }
  IC_FAIL("a reader of PDUs in no state");
}

void PduReader::place(std::span<std::byte> data) {
  IC_ASSERT(data.size() == data_length_ && data_have_ == 0);
  place_ = data;
}

void PduReader::next() {
  begin_next_ = false;
  state_ = State::common;
  have_ = 0;
  need_ = kCommonHeaderBytes;
  place_ = {};
  data_length_ = 0;
  data_have_ = 0;
  data_crc_ = 0;
  has_data_digest_ = false;
  digest_have_ = 0;
  data_digest_ = 0;
  data_intact_ = true;
}

PduReader::Progress PduReader::fail(FatalStatus status, std::uint32_t information, std::string message) {
  fault_ = {.terminate = {.status = status, .information = information}, .message = std::move(message)};
  return Progress::fault;
}

bool PduReader::expected(PduType type) const {
  const bool from_host = type == PduType::initialize_request || type == PduType::host_terminate ||
                         type == PduType::command || type == PduType::host_data;
  return from_host == (side_ == Side::target) && (is_termination(type) || is_initialization(type) != initialized_);
}

std::uint32_t PduReader::data_max_of(PduType type) const {
  if (type == PduType::command) return limits_.in_capsule_max;
  return is_data(type) ? limits_.data_max : 0;
}

// PLEN, PDO and what they leave for data. Sets data_length_, padding_left_, has_data_digest_, or the fault.
bool PduReader::lengths_make_sense(const CommonHeader& common) {
  const std::uint32_t digested =
      common.header_length + ((common.flags & kHeaderDigestFlag) != 0 ? std::uint32_t{kDigestBytes} : 0);
  const auto wrong = [&](std::uint32_t field, std::uint32_t value) {
    fail(FatalStatus::invalid_header_field, field,
         std::string(name_of(common.type)) + " has " + (field == kDataOffsetField ? "PDO " : "PLEN ") +
             std::to_string(value));
    return false;
  };
  if (is_termination(common.type)) {
    // Its data is for people; it needs no place.
    if (common.length < common.header_length || common.length - common.header_length > kTerminateDataMax) {
      return wrong(kLengthField, common.length);
    }
    data_length_ = common.length - common.header_length;
    return true;
  }
  const bool may_have_data = common.type == PduType::command || is_data(common.type);
  if (!may_have_data || common.length == digested) {
    // PDO says nothing where there is no data: hosts set it to what it would be.
    return common.length == digested || wrong(kLengthField, common.length);
  }
  if (common.data_offset < digested || common.data_offset % limits_.data_alignment != 0) {
    return wrong(kDataOffsetField, common.data_offset);
  }
  has_data_digest_ = (common.flags & kDataDigestFlag) != 0;
  const std::uint32_t around = common.data_offset + (has_data_digest_ ? std::uint32_t{kDigestBytes} : 0);
  if (common.length <= around) return wrong(kLengthField, common.length);
  if (common.length - around > data_max_of(common.type)) {
    fail(FatalStatus::data_out_of_range, kLengthField,
         std::string(name_of(common.type)) + " bears " + std::to_string(common.length - around) +
             " bytes of data, over the limit of " + std::to_string(data_max_of(common.type)));
    return false;
  }
  data_length_ = common.length - around;
  padding_left_ = common.data_offset - digested;
  return true;
}

PduReader::Progress PduReader::common_complete() {
  const CommonHeader common = decode_common_header(std::span(header_).first<kCommonHeaderBytes>());
  const std::optional<std::uint8_t> known = header_length(common.type);
  if (!known || !expected(common.type)) {
    const FatalStatus status = known ? FatalStatus::sequence_error : FatalStatus::invalid_header_field;
    return fail(status, 0,
                std::string(known ? "unexpected " : "") + std::string(name_of(common.type)) + " (type " +
                    std::to_string(static_cast<unsigned>(common.type)) + ")");
  }
  if (common.header_length != *known) {
    return fail(FatalStatus::invalid_header_field, kHeaderLengthField,
                std::string(name_of(common.type)) + " has HLEN " + std::to_string(common.header_length) + ", not " +
                    std::to_string(*known));
  }
  const bool digestless = is_initialization(common.type) || is_termination(common.type);
  const bool header_digest = (common.flags & kHeaderDigestFlag) != 0;
  const bool data_digest = (common.flags & kDataDigestFlag) != 0;
  if (header_digest != (digests_.header && !digestless) || (data_digest && (!digests_.data || digestless))) {
    return fail(FatalStatus::invalid_header_field, kFlagsField,
                std::string(name_of(common.type)) + " has digest flags that were not agreed on");
  }
  if (!lengths_make_sense(common)) return Progress::fault;
  if (data_length_ > 0 && digests_.data && !digestless && !data_digest) {
    return fail(FatalStatus::invalid_header_field, kFlagsField,
                std::string(name_of(common.type)) + " bears data without its digest");
  }
  state_ = State::header;
  need_ = common.header_length + (header_digest ? kDigestBytes : 0);
  return Progress::more;
}

PduReader::Progress PduReader::header_complete() {
  const CommonHeader common = decode_common_header(std::span(header_).first<kCommonHeaderBytes>());
  const std::span<const std::byte> bytes = std::span(header_).first(common.header_length);
  if (need_ > common.header_length) {
    const auto sent = load<std::uint32_t>(header_, common.header_length);
    const std::uint32_t found = digest_of(bytes);
    if (sent != found) {
      return fail(FatalStatus::header_digest_error, sent,
                  "the header digest of " + std::string(name_of(common.type)) + " is wrong");
    }
  }
  pdu_ = decode_header(bytes);
  initialized_ = initialized_ || is_initialization(pdu_.type);
  if (is_data(pdu_.type)) {
    const DataHeader& data = std::get<DataHeader>(pdu_.body);
    if (data.length != data_length_) {
      return fail(FatalStatus::invalid_header_field, kDataLengthField,
                  std::string(name_of(pdu_.type)) + " says that it bears " + std::to_string(data.length) +
                      " bytes, and bears " + std::to_string(data_length_));
    }
  }
  if (data_length_ == 0) return whole();
  state_ = padding_left_ > 0 ? State::padding : State::data;
  return Progress::header;
}

PduReader::Progress PduReader::data_begins() {
  state_ = State::data;
  return Progress::more;
}

PduReader::Progress PduReader::data_complete() {
  if (!has_data_digest_) return whole();
  state_ = State::digest;
  return Progress::more;
}

PduReader::Progress PduReader::digest_complete() {
  data_digest_ = load<std::uint32_t>(digest_, 0);
  data_intact_ = data_digest_ == data_crc_;
  return whole();
}

PduReader::Progress PduReader::whole() {
  begin_next_ = true;
  return Progress::whole;
}

}  // namespace infercluster::nvme
