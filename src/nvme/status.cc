// SPDX-License-Identifier: Apache-2.0
#include "nvme/status.h"

#include <array>
#include <cstdio>
#include <string_view>

namespace infercluster::nvme {
namespace {

struct Named {
  CommandStatus status;
  std::string_view name;
};

constexpr std::array kNames{
    Named{kSuccess, "success"},
    Named{kInvalidOpcode, "invalid command opcode"},
    Named{kInvalidField, "invalid field in command"},
    Named{kDataTransferError, "data transfer error"},
    Named{kInternalError, "internal error"},
    Named{kAbortRequested, "command abort requested"},
    Named{kInvalidNamespace, "invalid namespace or format"},
    Named{kCommandSequenceError, "command sequence error"},
    Named{kSglInvalidCount, "invalid number of SGL descriptors"},
    Named{kDataSglLengthInvalid, "data SGL length invalid"},
    Named{kSglTypeInvalid, "SGL descriptor type invalid"},
    Named{kSglOffsetInvalid, "SGL offset invalid"},
    Named{kNamespaceWriteProtected, "namespace is write protected"},
    Named{kTransientTransportError, "transient transport error"},
    Named{kLbaOutOfRange, "LBA out of range"},
    Named{kNamespaceNotReady, "namespace not ready"},
    Named{kAsyncEventLimitExceeded, "asynchronous event request limit exceeded"},
    Named{kInvalidLogPage, "invalid log page"},
    Named{kFeatureNotChangeable, "feature not changeable"},
    Named{kAuthenticationRequired, "authentication required"},
    Named{kUnrecoveredReadError, "unrecovered read error"},
    Named{kExtentGone, "the object at these blocks is gone"},
};

constexpr std::uint16_t kDnrBit = 1U << 15;

}  // namespace

std::uint16_t CommandStatus::field() const {
  const auto bits = static_cast<unsigned>(code) << 1 | (static_cast<unsigned>(type) & 7U) << 9 |
                    (retry == Retry::will_not_help ? kDnrBit : 0U);
  return static_cast<std::uint16_t>(bits);
}

CommandStatus CommandStatus::from_field(std::uint16_t field) {
  return {.type = static_cast<StatusType>(field >> 9 & 7U),
          .code = static_cast<std::uint8_t>(field >> 1 & 0xFFU),
          .retry = (field & kDnrBit) != 0 ? Retry::will_not_help : Retry::may_help};
}

std::string CommandStatus::to_string() const {
  if (ok()) return "success";
  std::array<char, 64> figures{};
  std::snprintf(figures.data(), figures.size(), "SCT %Xh, SC %02Xh%s", static_cast<unsigned>(type), unsigned{code},
                retry == Retry::will_not_help ? ", do not retry" : "");
  // What SCT 1 means beyond 80h depends on the command, so only what no other command shares is named.
  for (const Named& named : kNames) {
    if (named.status.type == type && named.status.code == code)
      return std::string(named.name) + " (" + figures.data() + ")";
  }
  return figures.data();
}

}  // namespace infercluster::nvme
