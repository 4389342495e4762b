// SPDX-License-Identifier: Apache-2.0
// What a network may do to NVMe/TCP, by plan: a proxy on loopback that takes the streams apart into PDUs, and changes,
// holds, swallows, cuts or crumbles them.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/fd.h"
#include "os/socket.h"

namespace infercluster::testing {

enum class Direction : std::uint8_t { to_target, to_host };

// A whole PDU on its way. A plan may change its bytes.
struct PduUnderWay {
  unsigned connection = 0;  // in the order in which they were made, from 0
  Direction direction = Direction::to_target;
  unsigned index = 0;  // of its connection and direction, from 0
  std::vector<std::byte>& bytes;

  [[nodiscard]] std::uint8_t type() const { return std::to_integer<std::uint8_t>(bytes[0]); }
};

// What becomes of a PDU and of what follows it.
struct PduFate {
  enum class Then : std::uint8_t {
    go_on,
    cut,      // the connection ends, in both directions
    swallow,  // nothing more comes through in this direction, while the connection stays
  };
  std::size_t forwarded = SIZE_MAX;  // of the PDU's bytes, from its beginning
  Then then = Then::go_on;
  std::vector<std::byte> answer{};  // goes back first to where the PDU came from
};

// Called by the proxy's threads, of several connections at once. One that waits holds its PDU back.
using PduPlan = std::function<PduFate(PduUnderWay&)>;

// Thread rule: any thread may call anything. Destruction ends all connections; no plan may still wait then.
class NvmeProxy {
 public:
  struct Options {
    std::size_t piece_max = 0;  // bytes in one send, from 1 up, at random; 0: whole PDUs
  };
  NvmeProxy(const os::SocketAddress& target, PduPlan plan, const Options& options)
      : target_(target), options_(options), plan_(std::make_shared<const PduPlan>(std::move(plan))) {
    listener_ = *os::listen_tcp(*os::parse_socket_address("127.0.0.1:0"));
    block(listener_);
    address_ = *os::local_address(listener_);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~NvmeProxy() {
    shutdown(listener_.get(), SHUT_RDWR);
    acceptor_.join();
    cut_all();
  }
  NvmeProxy(const NvmeProxy&) = delete;
  NvmeProxy& operator=(const NvmeProxy&) = delete;

  [[nodiscard]] const os::SocketAddress& address() const { return address_; }
  [[nodiscard]] unsigned connections() const { return count_.load(); }  // that there ever were
  // For the PDUs that come from now on.
  void plan(PduPlan plan) {
    const std::lock_guard lock(mutex_);
    plan_ = std::make_shared<const PduPlan>(std::move(plan));
  }
  // Ends the connections that there are. Returns when nothing is forwarded on them any more.
  void cut_all() {
    std::vector<std::unique_ptr<Connection>> ending;
    {
      const std::lock_guard lock(mutex_);
      ending.swap(connections_);
      for (const auto& connection : ending) connection->cut();
    }
    for (const auto& connection : ending) connection->join();
  }

 private:
  struct Connection {
    Fd host;
    Fd target;
    std::mutex to_host;  // held for one send
    std::mutex to_target;
    std::thread up;
    std::thread down;

    void cut() const {
      shutdown(host.get(), SHUT_RDWR);
      shutdown(target.get(), SHUT_RDWR);
    }
    void join() {
      up.join();
      down.join();
    }
  };

  static void block(const Fd& socket) {
    const int flags = fcntl(socket.get(), F_GETFL);
    IC_ASSERT(fcntl(socket.get(), F_SETFL, flags & ~O_NONBLOCK) == 0);
  }

  void accept_all() {
    for (;;) {
      Fd host(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!host.valid()) return;
      Result<Fd> target = os::connect_tcp(target_, std::chrono::seconds(20));
      if (!target.ok()) continue;  // and so the host's connection ends too
      block(*target);
      (void)os::send_at_once(host);
      (void)os::send_at_once(*target);
      auto connection = std::make_unique<Connection>();
      connection->host = std::move(host);
      connection->target = *std::move(target);
      Connection& c = *connection;
      const unsigned number = count_.fetch_add(1);
      const std::lock_guard lock(mutex_);
      c.up = std::thread([this, &c, number] { forward(c, number, Direction::to_target); });
      c.down = std::thread([this, &c, number] { forward(c, number, Direction::to_host); });
      connections_.push_back(std::move(connection));
    }
  }

  static bool read_all(const Fd& socket, std::span<std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t got = recv(socket.get(), bytes.data(), bytes.size(), 0);
      if (got <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    }
    return true;
  }

  bool send_all(const Fd& socket, std::span<const std::byte> bytes, std::minstd_rand& random) const {
    while (!bytes.empty()) {
      const std::size_t piece =
          options_.piece_max == 0 ? bytes.size() : std::min(bytes.size(), 1 + random() % options_.piece_max);
      const ssize_t sent = ::send(socket.get(), bytes.data(), piece, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
    return true;
  }

  bool send_all(Connection& connection, Direction direction, std::span<const std::byte> bytes,
                std::minstd_rand& random) const {
    const bool to_host = direction == Direction::to_host;
    const std::lock_guard lock(to_host ? connection.to_host : connection.to_target);
    return send_all(to_host ? connection.host : connection.target, bytes, random);
  }

  void forward(Connection& connection, unsigned number, Direction direction) {
    const bool to_host = direction == Direction::to_host;
    const Fd& from = to_host ? connection.target : connection.host;
    const Direction back = to_host ? Direction::to_target : Direction::to_host;
    constexpr std::size_t kCommon = 8;
    constexpr std::size_t kPduMax = std::size_t{16} << 20;
    std::minstd_rand random(number + 1);
    std::vector<std::byte> bytes;
    bool swallowing = false;
    for (unsigned index = 0;; ++index) {
      bytes.resize(kCommon);
      if (!read_all(from, bytes)) break;
      std::size_t length = 0;  // PLEN, little-endian
      for (std::size_t i = 4; i < kCommon; ++i) length |= std::to_integer<std::size_t>(bytes[i]) << 8 * (i - 4);
      if (length < kCommon || length > kPduMax) break;
      bytes.resize(length);
      if (!read_all(from, std::span(bytes).subspan(kCommon))) break;
      if (swallowing) continue;
      std::shared_ptr<const PduPlan> plan;
      {
        const std::lock_guard lock(mutex_);
        plan = plan_;
      }
      PduUnderWay pdu{.connection = number, .direction = direction, .index = index, .bytes = bytes};
      const PduFate fate = *plan ? (*plan)(pdu) : PduFate{};
      if (!send_all(connection, back, fate.answer, random)) break;
      if (!send_all(connection, direction, std::span(bytes).first(std::min(fate.forwarded, bytes.size())), random))
        break;
      if (fate.then == PduFate::Then::cut) break;
      swallowing = fate.then == PduFate::Then::swallow;
    }
    connection.cut();
  }

  const os::SocketAddress target_;
  const Options options_;
  Fd listener_;
  os::SocketAddress address_;
  std::atomic<unsigned> count_{0};
  std::mutex mutex_;
  std::shared_ptr<const PduPlan> plan_;                   // under mutex_
  std::vector<std::unique_ptr<Connection>> connections_;  // under mutex_
  std::thread acceptor_;
};

}  // namespace infercluster::testing
