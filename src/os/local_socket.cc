// SPDX-License-Identifier: Apache-2.0
#include "os/local_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/assert.h"

namespace infercluster::os {
namespace {

constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);

// An abstract name (unix(7)): its first byte is zero.
std::pair<sockaddr_un, socklen_t> address_of(const std::string& name) {
  sockaddr_un address{};
  IC_ASSERT(!name.empty() && name.size() < sizeof(address.sun_path));
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

const sockaddr* generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);  // NOLINT: the interface of sockets
}

Result<Fd> open_socket() {
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Error::from_errno(errno, "cannot open a local socket");
  return fd;
}

// What of `events` is so, or that the other end is gone; nothing by `until`.
short wait_for(int fd, short events, Clock::TimePoint until) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - steady_clock().now()).count();
    pollfd look{.fd = fd, .events = events, .revents = 0};
    const int found = ::poll(&look, 1, static_cast<int>(std::clamp<std::int64_t>(left + 1, 0, 1000)));
    if (found > 0) return look.revents;
    if ((found < 0 && errno != EINTR) || left <= 0) return 0;
  }
}

Error gone() {
  return {ErrorCode::io, "a process of this machine has ended before it said all"};
}

Error late() {
  return {ErrorCode::timed_out, "a process of this machine did not answer in time"};
}

}  // namespace

std::string socket_neighbourhood() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id") >> std::ws, boot);
  if (boot.empty()) return {};
  for (const char* space : {"/proc/self/ns/net", "/proc/self/ns/user"}) {
    struct stat found {};
    if (::stat(space, &found) != 0) return {};
    boot += " " + std::to_string(found.st_dev) + ":" + std::to_string(found.st_ino);
  }
  return boot + " " + std::to_string(::geteuid());
}

Result<LocalSocket> LocalSocket::connect(const std::string& name) {
  IC_TRY(Fd fd, open_socket());
  const auto [address, length] = address_of(name);
  if (::connect(fd.get(), generic(address), length) != 0)
    return Error::from_errno(errno, "cannot connect to a process of this machine");
  return LocalSocket(std::move(fd));
}

Status LocalSocket::send(std::string_view message, int passed, Clock::TimePoint deadline) {
  const std::uint64_t length = message.size();
  std::string bytes(kLengthBytes, '\0');
  std::memcpy(bytes.data(), &length, kLengthBytes);
  bytes += message;
  for (std::size_t at = 0; at < bytes.size();) {
    iovec part{bytes.data() + at, bytes.size() - at};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (passed >= 0 && at == 0) {
      header.msg_control = control;
      header.msg_controllen = sizeof(control);
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(rights), &passed, sizeof(int));
    }
    const ssize_t sent = ::sendmsg(fd_.get(), &header, MSG_NOSIGNAL);
    if (sent > 0) {
      at += static_cast<std::size_t>(sent);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EPIPE || errno == ECONNRESET) return gone();
    if (errno != EAGAIN) return Error::from_errno(errno, "cannot send to a process of this machine");
    if (wait_for(fd_.get(), POLLOUT, deadline) == 0) return late();
  }
  return {};
}

Result<LocalSocket::Message> LocalSocket::receive(std::uint64_t bytes_max, Clock::TimePoint deadline) {
  Message message;
  std::string bytes(kLengthBytes, '\0');
  bool has_length = false;
  for (std::size_t at = 0; at < bytes.size();) {
    iovec part{bytes.data() + at, bytes.size() - at};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    const ssize_t got = ::recvmsg(fd_.get(), &header, MSG_CMSG_CLOEXEC);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) return gone();
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno != EAGAIN) return Error::from_errno(errno, "cannot hear a process of this machine");
    if (got < 0) {
      if (wait_for(fd_.get(), POLLIN, deadline) == 0) return late();
      continue;
    }
    for (cmsghdr* rights = CMSG_FIRSTHDR(&header); rights != nullptr; rights = CMSG_NXTHDR(&header, rights)) {
      if (rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) continue;
      int passed = -1;
      std::memcpy(&passed, CMSG_DATA(rights), sizeof(int));
      message.passed = Fd(passed);
    }
    at += static_cast<std::size_t>(got);
    if (has_length || at < bytes.size()) continue;
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), kLengthBytes);
    if (length > bytes_max) {
      return Error(ErrorCode::too_large, "a process of this machine announced " + std::to_string(length) +
                                             " bytes, where " + std::to_string(bytes_max) + " are the most");
    }
    has_length = true;
    bytes.assign(length, '\0');
    at = 0;
  }
  message.bytes = std::move(bytes);
  return message;
}

bool LocalSocket::wait_readable(Clock::TimePoint until) const {
  return wait_for(fd_.get(), POLLIN, until) != 0;
}

bool LocalSocket::ended() const {
  return (wait_for(fd_.get(), POLLRDHUP, Clock::TimePoint{}) & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

Result<LocalListener> LocalListener::open(const std::string& name, int backlog) {
  IC_TRY(Fd fd, open_socket());
  const auto [address, length] = address_of(name);
  if (::bind(fd.get(), generic(address), length) != 0 || ::listen(fd.get(), backlog) != 0)
    return Error::from_errno(errno, "cannot listen to processes of this machine");
  return LocalListener(std::move(fd));
}

Result<std::optional<LocalSocket>> LocalListener::accept(Clock::TimePoint until) {
  while (true) {
    Fd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) {
      ucred peer{};
      socklen_t size = sizeof(peer);
      if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != ::geteuid()) continue;
      return std::optional(LocalSocket(std::move(fd)));
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno != EAGAIN) return Error::from_errno(errno, "cannot listen to processes of this machine");
    if (wait_for(fd_.get(), POLLIN, until) == 0) return std::optional<LocalSocket>();
  }
}

}  // namespace infercluster::os
