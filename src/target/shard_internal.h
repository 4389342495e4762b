// SPDX-License-Identifier: Apache-2.0
// What a shard is made of. Included by shard.cc and shard_io.cc alone.
#pragma once

#include <liburing.h>

#include <array>
#include <list>

#include "os/socket.h"
#include "target/buffers.h"
#include "target/pool.h"
#include "target/session.h"
#include "target/shard.h"

namespace infercluster::target {

struct Connection;

// What the kernel was asked to do. Its address is the request's user data, so it stays until the last completion.
struct Operation {
  enum class Kind : std::uint8_t { accept, wake, receive, send, read };
  Kind kind = Kind::accept;
  Connection* connection = nullptr;
};

// Some PDUs in one sendmsg. `unfinished` counts the send itself, and the kernel's hold on zero-copy pages.
struct SendBatch : Operation {
  static constexpr std::size_t kPdusMax = 16;
  std::array<Outgoing, kPdusMax> pdus;
  std::size_t count = 0;
  std::array<iovec, 3 * kPdusMax> pieces{};
  msghdr message{};
  std::uint64_t left = 0;  // bytes
  unsigned unfinished = 0;
  bool zero_copy = false;
  bool copy = false;  // zero-copy found no memory
};

// A read of a file into a buffer, for a command.
struct FileRead : Operation {
  PendingRead pending;
  std::byte* buffer = nullptr;
  const Piece* piece = nullptr;  // the object's, in `pending`
  std::uint64_t file_offset = 0;
  std::uint32_t buffer_offset = 0;
  std::uint32_t wanted = 0;  // bytes that the file has there
  std::uint32_t have = 0;
};

struct Connection {
  static constexpr std::size_t kReceiveBytes = 64 * 1024;

  Connection(Fd fd, Session::Environment environment) : socket(std::move(fd)), session(std::move(environment)) {}

  Fd socket;
  Session session;
  std::string peer;
  std::array<std::byte, kReceiveBytes> received{};
  Operation receive{.kind = Operation::Kind::receive, .connection = this};
  SendBatch* sending = nullptr;  // the one whose bytes are not all taken yet
  unsigned copied_in_turn = 0;   // zero-copy sends that the kernel copied, without one that it did not between
  unsigned operations = 0;       // of the kernel's, with this connection's memory
  bool no_more_input = false;    // the peer left, or is at fault: what is to be sent goes out, then it ends
  bool ending = false;           // shut down; waits for its operations
  bool initialized = false;      // something came
  Clock::TimePoint since;        // of its beginning, and of its last input
  Clock::TimePoint progress;     // of what is being sent
  SessionCounters counted;       // of the session's counters, what the shard's have
};

class Shard::Impl {
 public:
  Impl(const Shared& shared, const ShardOptions& options, Buffers buffers, Fd wake)
      : shared_(shared), options_(options), buffers_(std::move(buffers)), wake_fd_(std::move(wake)) {}
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Status start_ring();
  Status run();
  void stop();
  ShardCounters counters;

 private:
  friend class Shard;

  io_uring_sqe* request(Operation& operation);
  void arm_accept();
  void arm_wake();
  void arm_receive(Connection& connection);
  void handle(const io_uring_cqe& completion);
  void accepted(std::int32_t result, bool armed);
  void received(Connection& connection, std::int32_t result);
  void sent(SendBatch& batch, std::int32_t result, std::uint32_t flags);
  void read(FileRead& file_read, std::int32_t result);

  void add_connection(Fd socket);
  void advance(Connection& connection);  // starts whatever can be started
  void start_reads(Connection& connection);
  void start_read(Connection& connection, PendingRead pending, std::byte* buffer);
  void answer_from_memory(Connection& connection, const PendingRead& pending);
  void submit_read(FileRead& file_read);
  void finish_read(FileRead& file_read, bool failed);
  void start_send(Connection& connection);
  void submit_send(SendBatch& batch);
  void release(SendBatch& batch);
  void end(Connection& connection);
  bool reap(Connection& connection);  // true: it was destroyed
  void feed_starved();
  void end_all();
  void tick();
  [[nodiscard]] bool overdue(const Connection& connection, Clock::TimePoint now) const;
  void count(Connection& connection);
  void refuse_unauthenticated(Connection& connection);
  nvme::CommandStatus verify(const Connection& connection, const PendingRead& read, std::span<const std::byte> data,
                             std::uint32_t& crc);

  const Shared shared_;
  const ShardOptions options_;
  Buffers buffers_;
  Fd wake_fd_;
  std::uint64_t wake_value_ = 0;
  io_uring ring_{};
  bool ring_open_ = false;
  std::atomic<bool> stopping_{false};
  bool ending_all_ = false;
  bool report_usage_ = true;  // of zero-copy sends, until the kernel refuses it
  bool zero_copy_ = true;     // until the kernel refuses it
  Operation accept_{.kind = Operation::Kind::accept};
  Operation wake_{.kind = Operation::Kind::wake};
  unsigned operations_ = 0;    // accept and wake
  bool accept_again_ = false;  // at the next tick
  Pool<FileRead> file_reads_;
  Pool<SendBatch> batches_;
  std::list<std::unique_ptr<Connection>> connections_;
  std::uint32_t zero_block_crc_ = 0;
  bool starved_ = false;  // some connection waits for a buffer
};

}  // namespace infercluster::target
