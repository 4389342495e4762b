// SPDX-License-Identifier: Apache-2.0
// What a command came to: NVM Express Base Specification 2.0, section 3.3.3.2.1 (the status field of a completion).
#pragma once

#include <cstdint>
#include <string>

namespace infercluster::nvme {

enum class StatusType : std::uint8_t {
  generic = 0,
  command_specific = 1,
  media = 2,  // media and data integrity
  path = 3,
  vendor = 7,
};

enum class Retry : std::uint8_t { may_help, will_not_help };  // the DNR bit

struct CommandStatus {
  StatusType type = StatusType::generic;
  std::uint8_t code = 0;  // within its type
  Retry retry = Retry::may_help;

  [[nodiscard]] bool ok() const { return type == StatusType::generic && code == 0; }
  // As in the last 16 bits of a completion, whose lowest bit (the phase) is 0 over fabrics.
  [[nodiscard]] std::uint16_t field() const;
  static CommandStatus from_field(std::uint16_t field);
  // "success", "invalid field in command (SCT 0h, SC 02h, do not retry)", "SCT 7h, SC C1h".
  [[nodiscard]] std::string to_string() const;

  bool operator==(const CommandStatus&) const = default;
};

inline constexpr CommandStatus kSuccess{};
// What we answer. Retrying helps with none of them, except where the name says busy or transient.
inline constexpr CommandStatus kInvalidOpcode{StatusType::generic, 0x01, Retry::will_not_help};
inline constexpr CommandStatus kInvalidField{StatusType::generic, 0x02, Retry::will_not_help};
inline constexpr CommandStatus kDataTransferError{StatusType::generic, 0x04, Retry::may_help};
inline constexpr CommandStatus kInternalError{StatusType::generic, 0x06, Retry::may_help};
inline constexpr CommandStatus kAbortRequested{StatusType::generic, 0x07, Retry::will_not_help};
inline constexpr CommandStatus kInvalidNamespace{StatusType::generic, 0x0B, Retry::will_not_help};
inline constexpr CommandStatus kCommandSequenceError{StatusType::generic, 0x0C, Retry::will_not_help};
inline constexpr CommandStatus kSglInvalidCount{StatusType::generic, 0x0E, Retry::will_not_help};
inline constexpr CommandStatus kDataSglLengthInvalid{StatusType::generic, 0x0F, Retry::will_not_help};
inline constexpr CommandStatus kSglTypeInvalid{StatusType::generic, 0x11, Retry::will_not_help};
inline constexpr CommandStatus kSglOffsetInvalid{StatusType::generic, 0x16, Retry::will_not_help};
inline constexpr CommandStatus kNamespaceWriteProtected{StatusType::generic, 0x20, Retry::will_not_help};
inline constexpr CommandStatus kTransientTransportError{StatusType::generic, 0x22, Retry::may_help};
inline constexpr CommandStatus kLbaOutOfRange{StatusType::generic, 0x80, Retry::will_not_help};
inline constexpr CommandStatus kNamespaceNotReady{StatusType::generic, 0x82, Retry::may_help};

inline constexpr CommandStatus kAsyncEventLimitExceeded{StatusType::command_specific, 0x05, Retry::will_not_help};
inline constexpr CommandStatus kInvalidLogPage{StatusType::command_specific, 0x09, Retry::will_not_help};
inline constexpr CommandStatus kFeatureNotChangeable{StatusType::command_specific, 0x0E, Retry::will_not_help};
// Of the Connect command (section 6.3).
inline constexpr CommandStatus kConnectIncompatibleFormat{StatusType::command_specific, 0x80, Retry::will_not_help};
inline constexpr CommandStatus kConnectControllerBusy{StatusType::command_specific, 0x81, Retry::may_help};
inline constexpr CommandStatus kConnectInvalidParameters{StatusType::command_specific, 0x82, Retry::will_not_help};
inline constexpr CommandStatus kConnectInvalidHost{StatusType::command_specific, 0x84, Retry::will_not_help};
// Of every other command on a queue that has not authenticated yet.
inline constexpr CommandStatus kAuthenticationRequired{StatusType::command_specific, 0x91, Retry::will_not_help};

inline constexpr CommandStatus kUnrecoveredReadError{StatusType::media, 0x81, Retry::will_not_help};
// Ours: the object that these blocks named is gone. Linux gives it up after one attempt, as EIO.
inline constexpr CommandStatus kExtentGone{StatusType::vendor, 0xC1, Retry::will_not_help};

}  // namespace infercluster::nvme
