// SPDX-License-Identifier: Apache-2.0
// What reads over NVMe/TCP are measured against: the same sizes over a TCP socket with io_uring, and nothing else. No
// project code. Prints one JSON object (`serve` prints its port, and serves until it is killed).
//
// usage: nvme_bare serve                      on 127.0.0.1, a thread and a ring for each connection
//        nvme_bare ping PORT BYTES COUNT      requests of a command's size, one after another, each answered by a
//        header
//                                             and so many bytes: seconds of each
//        nvme_bare stream PORT BYTES COUNT BUFFERS CONNECTIONS
//                                             headers and bytes one way, as fast as they come, into buffers in turn;
//                                             each connection has COUNT and its own thread
#include <arpa/inet.h>
#include <liburing.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kRequestBytes = 72;  // a command capsule
constexpr std::size_t kHeaderBytes = 24;   // of a C2HData PDU

// The first bytes of a request.
struct Request {
  std::uint64_t bytes;
  std::uint64_t count;  // of answers
};

[[noreturn]] void fail(const char* what, int error) {
  std::fprintf(stderr, "nvme_bare: %s: %s\n", what, std::strerror(error));
  std::exit(1);
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// A connection with a ring of its own, one operation at a time.
class Wire {
 public:
  explicit Wire(int socket) : socket_(socket) {
    const int one = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    const int error = io_uring_queue_init(8, &ring_, 0);
    if (error < 0) fail("io_uring", -error);
  }
  ~Wire() {
    io_uring_queue_exit(&ring_);
    close(socket_);
  }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  // All of both parts; false: the peer is gone.
  bool send(const void* header, std::size_t header_bytes, const void* data, std::size_t data_bytes) {
    std::array<iovec, 2> parts{{{const_cast<void*>(header), header_bytes}, {const_cast<void*>(data), data_bytes}}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = data_bytes == 0 ? 1 : 2;
    for (std::size_t left = header_bytes + data_bytes; left > 0;) {
      io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
      io_uring_prep_sendmsg(entry, socket_, &message, MSG_NOSIGNAL | MSG_WAITALL);
      const std::int64_t sent = wait();
      if (sent <= 0) return false;
      left -= static_cast<std::size_t>(sent);
      for (iovec& part : parts) {
        const std::size_t taken = std::min(part.iov_len, static_cast<std::size_t>(sent));
        part.iov_base = static_cast<char*>(part.iov_base) + taken;
        part.iov_len -= taken;
        if (part.iov_len > 0) break;
      }
      if (left > 0 && parts[0].iov_len == 0) {
        message.msg_iov = &parts[1];
        message.msg_iovlen = 1;
      }
    }
    return true;
  }
  bool receive(void* into, std::size_t bytes) {
    for (auto* at = static_cast<char*>(into); bytes > 0;) {
      io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
      io_uring_prep_recv(entry, socket_, at, bytes, MSG_WAITALL);
      const std::int64_t got = wait();
      if (got <= 0) return false;
      at += got;
      bytes -= static_cast<std::size_t>(got);
    }
    return true;
  }
  // A header, then data.
  bool receive_answer(void* into, std::size_t bytes) {
    std::array<char, kHeaderBytes> header{};
    std::array<iovec, 2> parts{{{header.data(), header.size()}, {into, bytes}}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    io_uring_prep_recvmsg(entry, socket_, &message, MSG_WAITALL);
    const std::int64_t got = wait();
    if (got < static_cast<std::int64_t>(kHeaderBytes)) return false;
    const std::size_t data = static_cast<std::size_t>(got) - kHeaderBytes;
    return data == bytes || receive(static_cast<char*>(into) + data, bytes - data);
  }

 private:
  std::int64_t wait() {
    int error = io_uring_submit_and_wait(&ring_, 1);
    io_uring_cqe* done = nullptr;
    while (error == -EINTR || (error >= 0 && io_uring_peek_cqe(&ring_, &done) != 0))
      error = io_uring_submit_and_wait(&ring_, 1);
    if (error < 0) fail("io_uring", -error);
    const std::int64_t result = done->res;
    io_uring_cqe_seen(&ring_, done);
    return result;
  }

  const int socket_;
  io_uring ring_{};
};

void answer(int socket) {
  Wire wire(socket);
  std::vector<char> data;
  std::array<char, kHeaderBytes> header{};
  std::array<char, kRequestBytes> bytes{};
  while (wire.receive(bytes.data(), bytes.size())) {
    Request request{};
    std::memcpy(&request, bytes.data(), sizeof request);
    if (data.size() != request.bytes) data.assign(request.bytes, 'x');
    for (std::uint64_t i = 0; i < request.count; ++i) {
      if (!wire.send(header.data(), header.size(), data.data(), data.size())) return;
    }
  }
}

int serve() {
  const int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (listening < 0 || bind(listening, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      listen(listening, 64) != 0)
    fail("cannot listen", errno);
  socklen_t length = sizeof address;
  getsockname(listening, reinterpret_cast<sockaddr*>(&address), &length);
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  for (;;) {
    const int accepted = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    if (accepted < 0) fail("accept", errno);
    std::thread(answer, accepted).detach();
  }
}

int connect_to(int port) {
  const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (made < 0 || connect(made, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fail("connect", errno);
  return made;
}

void ask(Wire& wire, std::uint64_t bytes, std::uint64_t count) {
  const Request request{bytes, count};
  std::array<char, kRequestBytes> text{};
  std::memcpy(text.data(), &request, sizeof request);
  if (!wire.send(text.data(), text.size(), nullptr, 0)) fail("send", EPIPE);
}

int ping(int port, std::uint64_t bytes, std::uint64_t count) {
  Wire wire(connect_to(port));
  std::vector<char> memory(bytes);
  std::vector<double> latencies;
  for (std::uint64_t i = 0; i < count; ++i) {
    const double begin = now();
    ask(wire, bytes, 1);
    if (!wire.receive_answer(memory.data(), bytes)) fail("receive", EPIPE);
    latencies.push_back(now() - begin);
  }
  std::sort(latencies.begin(), latencies.end());
  std::printf("{\"p50_us\": %.2f, \"p99_us\": %.2f, \"cpu_seconds\": %.4f}\n", latencies[count / 2] * 1e6,
              latencies[count * 99 / 100] * 1e6, cpu_seconds());
  return 0;
}

int stream(int port, std::uint64_t bytes, std::uint64_t count, std::uint64_t buffers, std::uint64_t connections) {
  std::vector<std::vector<char>> memory(buffers * connections, std::vector<char>(bytes));
  const double begin = now();
  std::vector<std::thread> threads;
  for (std::uint64_t c = 0; c < connections; ++c) {
    threads.emplace_back([&, c] {
      Wire wire(connect_to(port));
      ask(wire, bytes, count);
      for (std::uint64_t i = 0; i < count; ++i) {
        if (!wire.receive_answer(memory[c * buffers + i % buffers].data(), bytes)) fail("receive", EPIPE);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = now() - begin;
  const double gib = static_cast<double>(bytes * count * connections) / (1 << 30);
  std::printf("{\"gib_per_s\": %.4f, \"seconds\": %.4f, \"cpu_seconds\": %.4f}\n", gib / seconds, seconds,
              cpu_seconds());
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
  const auto number = [&](int i) { return std::strtoull(arguments[i], nullptr, 10); };
  if (what == "serve" && count == 2) return serve();
  if (what == "ping" && count == 5) return ping(static_cast<int>(number(2)), number(3), number(4));
  if (what == "stream" && count == 7)
    return stream(static_cast<int>(number(2)), number(3), number(4), number(5), number(6));
  std::fprintf(stderr,
               "usage: nvme_bare serve | ping PORT BYTES COUNT | stream PORT BYTES COUNT BUFFERS CONNECTIONS\n");
  return 1;
}
