// SPDX-License-Identifier: Apache-2.0
// The stream of PDUs that a peer sends, taken apart as it comes in pieces of any size. Knows no socket: whoever reads
// one asks where the next bytes belong, puts them there, and says how many there were. Data goes to its place directly.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "nvme/pdu.h"

namespace infercluster::nvme {

enum class Side : std::uint8_t { host, target };

// Everything that is at fault with a stream ends it: `terminate` is what to tell the peer.
struct Fault {
  Terminate terminate;
  std::string message;  // for people
};

// Thread rule: one thread at a time.
class PduReader {
 public:
  struct Limits {
    std::uint32_t data_max = 0;        // bytes of data in one H2CData or C2HData
    std::uint32_t in_capsule_max = 0;  // bytes of data in one CapsuleCmd
    std::uint32_t data_alignment = 4;  // what the offset of data must be a multiple of: what this side asked for
  };
  // `side` is who reads: it decides which PDUs may come. The first is ICReq or ICResp, and no later one is.
  PduReader(Side side, const Limits& limits) : side_(side), limits_(limits) {}

  // What was agreed in the initialization: call it when that PDU was dealt with, before more is read.
  void use(Digests digests) { digests_ = digests; }
  // Other limits, known only once the peer has said more of itself.
  void limit(const Limits& limits) { limits_ = limits; }

  enum class Progress : std::uint8_t {
    more,    // fill room() again
    header,  // pdu() is there, and data follows: call place(), then go on
    whole,   // pdu() is complete with its data; the next bytes begin another
    fault,   // fault() says why; nothing more may be read
  };
  // Where the next bytes belong. Never empty.
  [[nodiscard]] std::span<std::byte> room();
  // The first `count` bytes of room() were filled.
  [[nodiscard]] Progress filled(std::size_t count);

  [[nodiscard]] const Pdu& pdu() const { return pdu_; }
  [[nodiscard]] std::uint32_t data_length() const { return data_length_; }
  // Where the data of pdu() goes: data_length() bytes, that stay until `whole`. Without it they are read and dropped.
  void place(std::span<std::byte> data);
  // Of a `whole` PDU: false when its data digest was wrong. That is the command's fault, not the stream's.
  [[nodiscard]] bool data_intact() const { return data_intact_; }
  // Of a `whole` PDU with data and digest: the digest, which was found right unless !data_intact().
  [[nodiscard]] std::uint32_t data_digest() const { return data_digest_; }

  [[nodiscard]] const Fault& fault() const { return fault_; }
  // The header at fault, for the peer's own records (behind Terminate).
  [[nodiscard]] std::span<const std::byte> header_bytes() const { return std::span(header_).first(have_); }
  // Nothing of a next PDU was read: the stream may end here.
  [[nodiscard]] bool at_boundary() const { return begin_next_ || (state_ == State::common && have_ == 0); }

 private:
  enum class State : std::uint8_t { common, header, padding, data, digest };

  Progress fail(FatalStatus status, std::uint32_t information, std::string message);
  Progress common_complete();
  Progress header_complete();
  Progress data_begins();
  Progress data_complete();
  Progress digest_complete();
  Progress whole();
  [[nodiscard]] bool expected(PduType type) const;
  [[nodiscard]] std::uint32_t data_max_of(PduType type) const;
  bool lengths_make_sense(const CommonHeader& common);
  void next();

  Side side_;
  Limits limits_;
  Digests digests_;
  bool initialized_ = false;
  State state_ = State::common;
  bool begin_next_ = false;  // the last PDU was whole: its header goes when the next one begins
  std::array<std::byte, kHeaderBytesMax + kDigestBytes> header_{};
  std::size_t have_ = 0;                   // bytes of header_
  std::size_t need_ = kCommonHeaderBytes;  // of header_ in this state
  std::uint32_t padding_left_ = 0;
  std::array<std::byte, 256> dropped_{};  // padding, and data without a place
  std::span<std::byte> place_;
  std::uint32_t data_length_ = 0;
  std::uint32_t data_have_ = 0;
  std::uint32_t data_crc_ = 0;
  bool has_data_digest_ = false;
  std::array<std::byte, kDigestBytes> digest_{};
  std::size_t digest_have_ = 0;
  std::uint32_t data_digest_ = 0;
  bool data_intact_ = true;
  Pdu pdu_;
  Fault fault_;
};

}  // namespace infercluster::nvme
