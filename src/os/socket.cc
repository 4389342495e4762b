// SPDX-License-Identifier: Apache-2.0
#include "os/socket.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace infercluster::os {
namespace {

constexpr int kBacklog = 128;
constexpr std::chrono::milliseconds kCancelMax(50);

// sockaddr_storage holds any family's address; the copies keep the compiler's aliasing rules.
sockaddr_in as_ipv4(const SocketAddress& address) {
  sockaddr_in in{};
  std::memcpy(&in, &address.storage, sizeof(in));
  return in;
}
sockaddr_in6 as_ipv6(const SocketAddress& address) {
  sockaddr_in6 in{};
  std::memcpy(&in, &address.storage, sizeof(in));
  return in;
}
template <typename Family>
SocketAddress store(const Family& in) {
  SocketAddress address;
  std::memcpy(&address.storage, &in, sizeof(in));
  address.length = sizeof(in);
  return address;
}

Error not_an_address(std::string_view text) {
  return Error(ErrorCode::invalid_argument, "\"" + std::string(text.substr(0, 100)) + "\" is not an address and a port")
      .with_hint("Write 127.0.0.1:4420, [::1]:4420, or 0.0.0.0:4420 for every address of this machine");
}

using NameCall = int (*)(int, sockaddr*, socklen_t*);
Result<SocketAddress> name_of(const Fd& socket, NameCall call, std::string_view action) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  if (call(socket.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0)
    return Error::from_errno(errno, action);
  return address;
}

Result<Fd> tcp_socket(const SocketAddress& address) {
  Fd socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return Error::from_errno(errno, "cannot make a TCP socket");
  return socket;
}

Status set_option(const Fd& socket, int level, int name, std::string_view action) {
  const int on = 1;
  if (setsockopt(socket.get(), level, name, &on, sizeof(on)) != 0) return Error::from_errno(errno, action);
  return {};
}

Error not_connected(int system_errno, std::string_view action) {
  Error error = Error::from_errno(system_errno, action);
  if (system_errno != ECONNREFUSED) return error;
  return std::move(error).with_hint("Nobody listens there: is the program running, and the port right?");
}

}  // namespace

const sockaddr* SocketAddress::get() const {
  return reinterpret_cast<const sockaddr*>(&storage);
}

std::uint16_t SocketAddress::port() const {
  return ntohs(ipv6() ? as_ipv6(*this).sin6_port : as_ipv4(*this).sin_port);
}

std::string SocketAddress::host() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (ipv6()) {
    const sockaddr_in6 in = as_ipv6(*this);
    inet_ntop(AF_INET6, &in.sin6_addr, text.data(), text.size());
  } else {
    const sockaddr_in in = as_ipv4(*this);
    inet_ntop(AF_INET, &in.sin_addr, text.data(), text.size());
  }
  return text.data();
}

std::string SocketAddress::to_string() const {
  return (ipv6() ? "[" + host() + "]" : host()) + ":" + std::to_string(port());
}

bool SocketAddress::loopback() const {
  const auto is_ipv4_loopback = [](std::uint8_t first) { return first == 127; };
  if (!ipv6()) return is_ipv4_loopback(static_cast<std::uint8_t>(ntohl(as_ipv4(*this).sin_addr.s_addr) >> 24));
  const sockaddr_in6 in = as_ipv6(*this);
  if (IN6_IS_ADDR_V4MAPPED(&in.sin6_addr)) return is_ipv4_loopback(in.sin6_addr.s6_addr[12]);
  return IN6_IS_ADDR_LOOPBACK(&in.sin6_addr) != 0;
}

Result<SocketAddress> parse_socket_address(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return not_an_address(text);
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc{} || end != digits.data() + digits.size()) return not_an_address(text);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    sockaddr_in6 in{};
    in.sin6_family = AF_INET6;
    in.sin6_port = htons(port);
    if (inet_pton(AF_INET6, std::string(host.substr(1, host.size() - 2)).c_str(), &in.sin6_addr) != 1)
      return not_an_address(text);
    return store(in);
  }
  if (host == "*") host = "0.0.0.0";
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(port);
  if (inet_pton(AF_INET, std::string(host).c_str(), &in.sin_addr) != 1) return not_an_address(text);
  return store(in);
}

Result<Fd> listen_tcp(const SocketAddress& address) {
  IC_TRY(Fd socket, tcp_socket(address));
  IC_CHECK(set_option(socket, SOL_SOCKET, SO_REUSEADDR, "cannot set SO_REUSEADDR"));
  const bool bound = bind(socket.get(), address.get(), address.length) == 0;
  if (!bound || listen(socket.get(), kBacklog) != 0) {
    const int system_errno = errno;
    Error error = Error::from_errno(system_errno, "cannot listen at " + address.to_string());
    if (system_errno == EADDRINUSE)
      return std::move(error).with_hint("Another program has this port: end it, or choose another port");
    if (system_errno == EADDRNOTAVAIL) return std::move(error).with_hint("This machine does not have that address");
    return error;
  }
  return socket;
}

Result<SocketAddress> local_address(const Fd& socket) {
  return name_of(socket, getsockname, "cannot ask for a socket's own address");
}
Result<SocketAddress> peer_address(const Fd& socket) {
  return name_of(socket, getpeername, "cannot ask for a socket's peer");
}

Result<Fd> connect_tcp(const SocketAddress& address, std::chrono::milliseconds timeout,
                       const std::atomic<bool>* cancelled) {
  const std::string action = "cannot connect to " + address.to_string();
  IC_TRY(Fd socket, tcp_socket(address));
  if (connect(socket.get(), address.get(), address.length) == 0) return socket;
  if (errno != EINPROGRESS) return not_connected(errno, action);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  pollfd waited{.fd = socket.get(), .events = POLLOUT, .revents = 0};
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      return Error(ErrorCode::timed_out, action + ": no answer within " + std::to_string(timeout.count()) + " ms")
          .with_hint("Is the target running, and does a firewall between drop the packets?");
    }
    if (cancelled != nullptr && cancelled->load()) return Error(ErrorCode::cancelled, action + ": not wanted any more");
    const auto slice = cancelled == nullptr ? left : std::min(left, kCancelMax);
    const int ready = poll(&waited, 1, static_cast<int>(slice.count()));
    if (ready > 0) break;
    if (ready < 0 && errno != EINTR) return Error::from_errno(errno, action);
  }
  int failure = 0;
  socklen_t length = sizeof(failure);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &failure, &length) != 0) failure = errno;
  if (failure != 0) return not_connected(failure, action);
  return socket;
}

Status send_at_once(const Fd& socket) {
  return set_option(socket, IPPROTO_TCP, TCP_NODELAY, "cannot set TCP_NODELAY");
}

}  // namespace infercluster::os
