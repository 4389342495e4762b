// SPDX-License-Identifier: Apache-2.0
// A target, and hosts that speak to it over sockets.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "target/host_test_helpers.h"
#include "target/target.h"
#include "testing/temp_dir.h"

namespace infercluster::target {

// A queue over a socket. Every wait ends after 20 s: longer than anything here takes.
class SocketQueue {
 public:
  explicit SocketQueue(const Target& target) : socket_(*os::connect_tcp(target.address(), std::chrono::seconds(20))) {}

  bool send(const Bytes& bytes) {
    std::size_t at = 0;
    while (at < bytes.size()) {
      if (!ready(POLLOUT)) return false;
      const ssize_t sent = ::send(socket_.get(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      at += static_cast<std::size_t>(sent);
    }
    return true;
  }
  // Reads until something is there that `done` wants. False: the connection ended.
  template <typename Done>
  bool read_until(const Done& done) {
    std::array<std::byte, 65536> buffer;
    while (!done()) {
      if (!ready(POLLIN)) return false;
      const ssize_t got = recv(socket_.get(), buffer.data(), buffer.size(), 0);
      if (got <= 0) return false;
      EXPECT_TRUE(host.receive(std::span(buffer).first(static_cast<std::size_t>(got)))) << host.fault;
    }
    return true;
  }
  bool closed_by_target() {
    return !read_until([] { return false; });
  }
  std::optional<nvme::Completion> next() {
    if (!read_until([&] { return !host.completions.empty(); })) return std::nullopt;
    const nvme::Completion completion = host.completions.front();
    host.completions.pop_front();
    return completion;
  }
  void initialize(nvme::Digests digests = {}) {
    digests_ = digests;
    host.use(digests);
    ASSERT_TRUE(send(initialize_bytes(digests)));
    ASSERT_TRUE(read_until([&] { return !host.others.empty(); }));
  }
  nvme::Completion connect(const ConnectTo& to) {
    EXPECT_TRUE(send(connect_bytes(to, 1, digests_)));
    return next().value();
  }
  nvme::Completion command(const nvme::Command& command, std::uint32_t length = 0, std::uint16_t cid = 7) {
    host.data.erase(cid);
    EXPECT_TRUE(send(command_bytes(command, cid, length, digests_)));
    return next().value();
  }
  std::uint16_t bring_up(const Target& target, nvme::Digests digests = {}) {
    initialize(digests);
    ConnectTo to;
    to.nqn = target.subsystem().nqn;
    const nvme::Completion completion = connect(to);
    EXPECT_TRUE(completion.status.ok());
    EXPECT_TRUE(
        command(nvme::encode_property_set({.offset = nvme::kPropertyConfiguration, .bytes = 4, .value = 0x460001}))
            .status.ok());
    return nvme::decode_connected(completion.result).controller_id;
  }
  nvme::Completion open_io(const Target& target, std::uint16_t controller, std::uint16_t queue,
                           nvme::Digests digests = {}) {
    initialize(digests);
    ConnectTo to{.connect = {.format = 0, .queue_id = queue, .queue_size = 127, .attributes = 0, .keep_alive_ms = 0}};
    to.nqn = target.subsystem().nqn;
    to.controller_id = controller;
    return connect(to);
  }
  [[nodiscard]] const Fd& socket() const { return socket_; }

  HostReader host;

 private:
  bool ready(short events) {
    pollfd waited{.fd = socket_.get(), .events = events, .revents = 0};
    const int count = poll(&waited, 1, 20'000);
    EXPECT_GT(count, 0) << "nothing happened for 20 s";
    return count > 0;
  }

  Fd socket_;
  nvme::Digests digests_;
};

class TargetTest : public ::testing::Test {
 protected:
  std::unique_ptr<Target> start(TargetOptions options = {}) {
    options.listen = *os::parse_socket_address("127.0.0.1:0");
    Result<std::unique_ptr<Target>> target = Target::start(options);
    EXPECT_TRUE(target.ok()) << target.error().to_string();
    return *std::move(target);
  }
  std::string object(const std::string& name, std::size_t bytes) {
    std::string content(bytes, '\0');
    for (std::size_t i = 0; i < bytes; ++i) content[i] = static_cast<char>(i * 131 + i / 4096 + name.size());
    contents_[name] = content;
    return directory_.write(name, content);
  }
  // The same in memory that nobody can change any more.
  std::string sealed_object(const std::string& name, std::size_t bytes) {
    object(name, bytes);
    Fd& file = memory_.emplace_back(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
    const std::string& content = contents_[name];
    EXPECT_EQ(pwrite(file.get(), content.data(), bytes, 0), static_cast<ssize_t>(bytes));
    EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK), 0);
    return "/proc/self/fd/" + std::to_string(file.get());
  }
  Bytes expected(const std::string& name, std::uint64_t block, std::uint32_t blocks) {
    const std::string& content = contents_[name];
    Bytes bytes(blocks * kBlockBytes);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const std::size_t at = block * kBlockBytes + i;
      if (at < content.size()) bytes[i] = static_cast<std::byte>(content[at]);
    }
    return bytes;
  }

  testing::TempDir directory_;
  std::map<std::string, std::string> contents_;
  std::vector<Fd> memory_;
};

}  // namespace infercluster::target
