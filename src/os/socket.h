// SPDX-License-Identifier: Apache-2.0
// TCP sockets and their addresses. Every socket is non-blocking and closes at exec.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"

namespace infercluster::os {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  [[nodiscard]] const sockaddr* get() const;
  [[nodiscard]] bool ipv6() const { return storage.ss_family == AF_INET6; }
  [[nodiscard]] std::uint16_t port() const;
  [[nodiscard]] std::string host() const;       // "127.0.0.1", "::1"
  [[nodiscard]] std::string to_string() const;  // "127.0.0.1:4420", "[::1]:4420"
  // 127.0.0.0/8, ::1, and the first as seen by an IPv6 socket.
  [[nodiscard]] bool loopback() const;
};

// "127.0.0.1:4420", "[::1]:4420", "0.0.0.0:0", "*:4420" (every IPv4 address). Names are not looked up. Errors:
// invalid_argument.
Result<SocketAddress> parse_socket_address(std::string_view text);

// Listens at the address; port 0 is a free one (local_address() says which). A port in use is the error `io` with a
// hint.
Result<Fd> listen_tcp(const SocketAddress& address);
Result<SocketAddress> local_address(const Fd& socket);
Result<SocketAddress> peer_address(const Fd& socket);

// Connects, and fails with timed_out when nobody has answered by then; with cancelled, when `cancelled` has been true
// for at most 50 ms.
Result<Fd> connect_tcp(const SocketAddress& address, std::chrono::milliseconds timeout,
                       const std::atomic<bool>* cancelled = nullptr);

// Small messages go out at once: TCP_NODELAY.
Status send_at_once(const Fd& socket);

}  // namespace infercluster::os
