// SPDX-License-Identifier: Apache-2.0
#include "os/socket.h"

#include <gtest/gtest.h>

#include <vector>

namespace infercluster::os {
namespace {

TEST(SocketAddress, IsReadAndWrittenAlike) {
  for (const char* text : {"127.0.0.1:4420", "[::1]:8009", "0.0.0.0:0", "[2001:db8::1]:65535"}) {
    const Result<SocketAddress> address = parse_socket_address(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_EQ(address->to_string(), text);
  }
  EXPECT_EQ(parse_socket_address("*:4420")->to_string(), "0.0.0.0:4420");
}

TEST(SocketAddress, WhatIsNoneIsRefused) {
  for (const char* text : {"", "127.0.0.1", ":4420", "localhost:4420", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:44x",
                           "::1:4420", "[::1]", "1.2.3:4"}) {
    const Result<SocketAddress> address = parse_socket_address(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_EQ(address.error().code(), ErrorCode::invalid_argument);
  }
}

TEST(SocketAddress, KnowsLoopback) {
  for (const char* text : {"127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"})
    EXPECT_TRUE(parse_socket_address(text)->loopback()) << text;
  for (const char* text : {"10.0.0.1:1", "0.0.0.0:1", "[2001:db8::1]:1", "[::ffff:10.0.0.1]:1"})
    EXPECT_FALSE(parse_socket_address(text)->loopback()) << text;
}

TEST(Socket, ConnectsToWhoListens) {
  const Result<Fd> listener = listen_tcp(*parse_socket_address("127.0.0.1:0"));
  ASSERT_TRUE(listener.ok());
  const Result<SocketAddress> address = local_address(*listener);
  ASSERT_TRUE(address.ok());
  EXPECT_NE(address->port(), 0);
  const Result<Fd> socket = connect_tcp(*address, std::chrono::seconds(5));
  ASSERT_TRUE(socket.ok());
  EXPECT_TRUE(send_at_once(*socket).ok());
  EXPECT_EQ(peer_address(*socket)->to_string(), address->to_string());
}

TEST(Socket, APortInUseIsNamedWithWhatToDo) {
  const Result<Fd> first = listen_tcp(*parse_socket_address("127.0.0.1:0"));
  ASSERT_TRUE(first.ok());
  const Result<Fd> second = listen_tcp(*local_address(*first));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().system_errno(), EADDRINUSE);
  EXPECT_FALSE(second.error().hint().empty());
}

TEST(Socket, APortWithoutAListenerRefuses) {
  SocketAddress address;
  {
    const Result<Fd> listener = listen_tcp(*parse_socket_address("127.0.0.1:0"));
    ASSERT_TRUE(listener.ok());
    address = *local_address(*listener);
  }
  const Result<Fd> socket = connect_tcp(address, std::chrono::seconds(5));
  ASSERT_FALSE(socket.ok());
  EXPECT_EQ(socket.error().system_errno(), ECONNREFUSED);
}

// A listener whose queue is full swallows what comes: as a silent address does.
TEST(Socket, SilenceEndsAtTheDeadline) {
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress any = *parse_socket_address("127.0.0.1:0");
  ASSERT_EQ(bind(listener.get(), any.get(), any.length), 0);
  ASSERT_EQ(listen(listener.get(), 0), 0);
  const SocketAddress address = *local_address(listener);
  std::vector<Fd> taken;
  for (int i = 0; i < 8; ++i) {
    Result<Fd> socket = connect_tcp(address, std::chrono::milliseconds(100));
    if (!socket.ok()) {
      EXPECT_EQ(socket.error().code(), ErrorCode::timed_out);
      EXPECT_FALSE(socket.error().hint().empty());
      return;
    }
    taken.push_back(*std::move(socket));
  }
  FAIL() << "a queue of length 0 took 8 connections";
}

}  // namespace
}  // namespace infercluster::os
