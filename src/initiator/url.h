// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "os/socket.h"

namespace infercluster::initiator {

// nvme-tcp://HOST:PORT/NQN?nsid=N: a namespace of a subsystem. Without NQN: the address alone, for discovery. HOST is
// an address, in brackets for IPv6; names are not looked up. PORT may be left out (4420, and 8009 for discovery).
struct Url {
  os::SocketAddress address;
  std::string nqn;  // empty: none
  std::uint32_t nsid = 1;

  [[nodiscard]] std::string to_string() const;
};

// Errors: invalid_argument.
Result<Url> parse_url(std::string_view text);

}  // namespace infercluster::initiator
