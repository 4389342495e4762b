// SPDX-License-Identifier: Apache-2.0
// What a shard does with its connections: their bytes, reads and sends.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "target/shard_internal.h"

namespace infercluster::target {
namespace {

// Of the kernel's interface since 6.2, and in no header of Debian 12.
constexpr unsigned kReportUsage = 1U << 3;        // IORING_SEND_ZC_REPORT_USAGE
constexpr std::uint32_t kUsageCopied = 1U << 31;  // IORING_NOTIF_USAGE_ZC_COPIED

// A way on which the kernel copies after all (loopback, a device without scatter-gather) costs more with zero-copy than
// without: after so many it is let be.
constexpr unsigned kCopiedInTurnMax = 16;

// What an accept gives when it is only this moment that is bad.
bool passing(std::int32_t result) {
  return result == -ECONNABORTED || result == -EINTR || result == -EAGAIN || result == -EPROTO || result == -EMFILE ||
         result == -ENFILE || result == -ENOBUFS || result == -ENOMEM;
}

nvme::DiscoveryLog discovery_log(const os::SocketAddress& local, const std::string& nqn) {
  const auto entry = [&](nvme::SubsystemType type, const std::string& name) {
    return nvme::DiscoveryEntry{.transport = nvme::kTransportTcp,
                                .family = local.ipv6() ? nvme::AddressFamily::ipv6 : nvme::AddressFamily::ipv4,
                                .type = type,
                                .port_id = 1,
                                .controller_id = nvme::kAnyController,
                                .admin_queue_size = 32,
                                .service = std::to_string(local.port()),
                                .subsystem_nqn = name,
                                .address = local.host()};
  };
  return {.generation = 1,
          .entries = {entry(nvme::SubsystemType::current_discovery, nvme::kDiscoveryNqn),
                      entry(nvme::SubsystemType::nvm, nqn)}};
}

// Where the whole read lies in the memory of one object; else empty.
std::span<const std::byte> in_memory(const PendingRead& read) {
  const Piece& piece = read.pieces.list[0];
  if (read.pieces.count != 1 || piece.object == nullptr) return {};
  const std::span<const std::byte> memory = piece.object->memory();
  const std::uint64_t begin = piece.first_block * kBlockBytes;
  return begin + read.bytes <= memory.size() ? memory.subspan(begin, read.bytes) : std::span<const std::byte>();
}

// False: not all of it came. A second try says why.
bool read_at_once(FileRead& read) {
  const ssize_t got = pread(read.piece->object->fd().get(), read.buffer + read.buffer_offset, read.wanted,
                            static_cast<off_t>(read.file_offset));
  return got == static_cast<ssize_t>(read.wanted);
}

}  // namespace

void Shard::Impl::arm_accept() {
  io_uring_sqe* sqe = request(accept_);
  io_uring_prep_multishot_accept(sqe, shared_.listener->get(), nullptr, nullptr, SOCK_CLOEXEC);
  io_uring_sqe_set_data(sqe, &accept_);
}

void Shard::Impl::arm_wake() {
  io_uring_sqe* sqe = request(wake_);
  io_uring_prep_read(sqe, wake_fd_.get(), &wake_value_, sizeof(wake_value_), 0);
  io_uring_sqe_set_data(sqe, &wake_);
}

void Shard::Impl::arm_receive(Connection& connection) {
  io_uring_sqe* sqe = request(connection.receive);
  io_uring_prep_recv(sqe, connection.socket.get(), connection.received.data(), connection.received.size(), 0);
  io_uring_sqe_set_data(sqe, &connection.receive);
}

void Shard::Impl::accepted(std::int32_t result, bool armed) {
  if (result >= 0) {
    Fd socket(result);
    if (!ending_all_ && !stopping_.load()) add_connection(std::move(socket));
  } else if (!passing(result) && result != -ECANCELED) {
    log_error("the target accepts no more connections: " + Error::from_errno(-result, "accept").to_string());
    return;
  }
  if (armed || stopping_.load()) return;
  // Out of descriptors: the next tick may have some.
  if (result < 0) {
    accept_again_ = true;
  } else {
    arm_accept();
  }
}

void Shard::Impl::add_connection(Fd socket) {
  if (connections_.size() >= options_.connections_max) {
    ++counters.connections_refused;
    return;
  }
  const Result<os::SocketAddress> local = os::local_address(socket);
  const Result<os::SocketAddress> peer = os::peer_address(socket);
  if (!local.ok() || !peer.ok() || !os::send_at_once(socket).ok()) return;  // it is gone already
  ++counters.connections;
  auto connection = std::make_unique<Connection>(
      std::move(socket), Session::Environment{.controllers = shared_.controllers,
                                              .space = shared_.space,
                                              .clock = shared_.clock,
                                              .loopback = peer->loopback(),
                                              .log = discovery_log(*local, shared_.controllers->subsystem().nqn)});
  connection->peer = peer->to_string();
  connection->since = shared_.clock->now();
  arm_receive(*connection);
  connections_.push_back(std::move(connection));
}

void Shard::Impl::received(Connection& connection, std::int32_t result) {
  if (connection.ending) return;
  if (result == -EINTR || result == -EAGAIN) return arm_receive(connection);
  if (result <= 0) {
    // The peer has gone: nothing that could still be sent would be read.
    refuse_unauthenticated(connection);
    end(connection);
    return;
  }
  connection.initialized = true;
  if (!connection.session.receive(std::span(connection.received).first(static_cast<std::size_t>(result)))) {
    connection.no_more_input = true;
    connection.since = shared_.clock->now();
    ++counters.faults;
    log_warning(connection.peer + ": connection ended: " + connection.session.fault());
  } else {
    arm_receive(connection);
  }
  count(connection);
  advance(connection);
}

void Shard::Impl::advance(Connection& connection) {
  if (connection.ending) return;
  if (!connection.no_more_input) start_reads(connection);
  start_send(connection);
  const bool idle = connection.sending == nullptr && connection.session.outgoing().empty();
  if (connection.no_more_input && idle) end(connection);
}

void Shard::Impl::start_reads(Connection& connection) {
  while (const PendingRead* next = connection.session.waiting_read()) {
    if (!in_memory(*next).empty()) {
      answer_from_memory(connection, *connection.session.next_read());
      continue;
    }
    // A host that takes nothing holds as much as it leaves: half of the memory, the next such one half of the rest.
    std::atomic<std::size_t>& held = connection.session.controller()->buffers_held;
    std::byte* buffer = held.load() < buffers_.available() || held.load() == 0 ? buffers_.take() : nullptr;
    if (buffer == nullptr) break;
    ++held;
    start_read(connection, *connection.session.next_read(), buffer);
  }
  if (connection.session.reads_waiting() > 0) starved_ = true;
}

void Shard::Impl::answer_from_memory(Connection& connection, const PendingRead& pending) {
  const std::span<const std::byte> data = in_memory(pending);
  std::uint32_t crc = 0;
  const nvme::CommandStatus status = verify(connection, pending, data, crc);
  connection.session.read_done(pending,
                               {.status = status, .data = data, .crc = crc, .held = pending.pieces.list[0].object});
  count(connection);
}

void Shard::Impl::start_read(Connection& connection, PendingRead pending, std::byte* buffer) {
  FileRead& file_read = file_reads_.take();
  file_read.kind = Operation::Kind::read;
  file_read.connection = &connection;
  file_read.pending = std::move(pending);
  file_read.buffer = buffer;
  std::uint32_t at = 0;
  for (std::size_t i = 0; i < file_read.pending.pieces.count; ++i) {
    const Piece& piece = file_read.pending.pieces.list[i];
    const auto bytes = static_cast<std::uint32_t>(piece.blocks * kBlockBytes);
    if (piece.object) {
      IC_ASSERT(file_read.piece == nullptr);
      file_read.piece = &piece;
      file_read.file_offset = piece.first_block * kBlockBytes;
      file_read.buffer_offset = at;
      file_read.wanted =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes, piece.object->size() - file_read.file_offset));
      std::fill(buffer + at + file_read.wanted, buffer + at + bytes, std::byte{0});
    } else {
      std::fill(buffer + at, buffer + at + bytes, std::byte{0});
    }
    at += bytes;
  }
  if (file_read.piece == nullptr) return finish_read(file_read, false);
  const std::span<const std::byte> memory = file_read.piece->object->memory();
  if (!memory.empty()) {
    const std::span<const std::byte> part = memory.subspan(file_read.file_offset, file_read.wanted);
    std::copy(part.begin(), part.end(), buffer + file_read.buffer_offset);
    finish_read(file_read, false);
  } else if (file_read.piece->object->on_tmpfs() && read_at_once(file_read)) {
    finish_read(file_read, false);
  } else {
    submit_read(file_read);
  }
}

void Shard::Impl::submit_read(FileRead& file_read) {
  io_uring_sqe* sqe = request(file_read);
  io_uring_prep_read(sqe, file_read.piece->object->fd().get(),
                     file_read.buffer + file_read.buffer_offset + file_read.have, file_read.wanted - file_read.have,
                     file_read.file_offset + file_read.have);
  io_uring_sqe_set_data(sqe, &file_read);
}

void Shard::Impl::read(FileRead& file_read, std::int32_t result) {
  if (result == -EINTR || result == -EAGAIN) return submit_read(file_read);
  if (result > 0) file_read.have += static_cast<std::uint32_t>(result);
  if (result > 0 && file_read.have < file_read.wanted) return submit_read(file_read);
  const bool failed = file_read.have < file_read.wanted;
  if (failed) {
    const std::string why =
        result < 0 ? Error::from_errno(-result, "cannot read").message() : "the file has become shorter";
    log_error(file_read.piece->object->path() + ": offset " + std::to_string(file_read.file_offset + file_read.have) +
              ": " + why);
  }
  Connection& connection = *file_read.connection;
  finish_read(file_read, failed);
  advance(connection);
}

void Shard::Impl::finish_read(FileRead& file_read, bool failed) {
  Connection& connection = *file_read.connection;
  std::byte* buffer = file_read.buffer;
  std::uint32_t crc = 0;
  const nvme::CommandStatus status =
      failed ? nvme::kUnrecoveredReadError
             : verify(connection, file_read.pending, std::span(buffer, file_read.pending.bytes), crc);
  // The object is held with the buffer, until the kernel has let go of the bytes.
  struct Lease {
    Buffers& buffers;
    ControllerSlot& of;
    std::byte* buffer;
    Pieces pieces;
    Lease(Buffers& from, ControllerSlot& host, std::byte* taken, Pieces objects)
        : buffers(from), of(host), buffer(taken), pieces(std::move(objects)) {}
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() {
      buffers.give_back(buffer);
      --of.buffers_held;
    }
  };
  std::shared_ptr<const void> held =
      std::make_shared<const Lease>(buffers_, *connection.session.controller(), buffer, file_read.pending.pieces);
  // A peer at fault has been told, and that is the last it hears.
  if (!connection.ending && !connection.no_more_input) {
    connection.session.read_done(file_read.pending,
                                 {.status = status,
                                  .data = std::span<const std::byte>(buffer, file_read.pending.bytes),
                                  .crc = crc,
                                  .held = std::move(held)});
    count(connection);
  }
  file_reads_.give_back(file_read);
}

void Shard::Impl::start_send(Connection& connection) {
  std::deque<Outgoing>& waiting = connection.session.outgoing();
  if (connection.sending != nullptr || waiting.empty()) return;
  SendBatch* batch = &batches_.take();
  batch->kind = Operation::Kind::send;
  batch->connection = &connection;
  std::size_t pieces = 0;
  const auto add = [&](const std::byte* data, std::size_t bytes) {
    if (bytes == 0) return;
    batch->pieces[pieces++] = {.iov_base = const_cast<std::byte*>(data), .iov_len = bytes};
    batch->left += bytes;
  };
  while (!waiting.empty() && batch->count < SendBatch::kPdusMax) {
    Outgoing& pdu = batch->pdus[batch->count++];
    pdu = std::move(waiting.front());
    waiting.pop_front();
    add(pdu.prelude.data(), pdu.prelude_bytes);
    add(pdu.data.data(), pdu.data.size());
    add(pdu.digest.data(), pdu.digest_bytes);
  }
  batch->message.msg_iov = batch->pieces.data();
  batch->message.msg_iovlen = pieces;
  connection.sending = batch;
  submit_send(*batch);
}

void Shard::Impl::submit_send(SendBatch& batch) {
  const bool in_vain = batch.connection->copied_in_turn >= kCopiedInTurnMax;
  batch.zero_copy = zero_copy_ && !batch.copy && !in_vain && batch.left >= options_.zero_copy_from;
  batch.connection->progress = shared_.clock->now();
  io_uring_sqe* sqe = request(batch);
  if (batch.zero_copy) {
    io_uring_prep_sendmsg_zc(sqe, batch.connection->socket.get(), &batch.message, MSG_NOSIGNAL | MSG_WAITALL);
    if (report_usage_) sqe->ioprio = static_cast<std::uint16_t>(sqe->ioprio | kReportUsage);
    ++counters.sends_zero_copy;
  } else {
    io_uring_prep_sendmsg(sqe, batch.connection->socket.get(), &batch.message, MSG_NOSIGNAL | MSG_WAITALL);
  }
  io_uring_sqe_set_data(sqe, &batch);
  ++batch.unfinished;
  ++counters.sends;
}

void Shard::Impl::sent(SendBatch& batch, std::int32_t result, std::uint32_t flags) {
  Connection& connection = *batch.connection;
  if ((flags & IORING_CQE_F_NOTIF) != 0) {
    // The kernel has let go of the pages of one send.
    const bool copied = (static_cast<std::uint32_t>(result) & kUsageCopied) != 0;
    if (copied) ++counters.sends_copied;
    connection.copied_in_turn = copied ? connection.copied_in_turn + 1 : 0;
    --batch.unfinished;
    release(batch);
    return;
  }
  if ((flags & IORING_CQE_F_MORE) == 0) --batch.unfinished;  // else its notification is still to come
  if (batch.zero_copy && result == -EINVAL && report_usage_) {
    report_usage_ = false;
    result = 0;
  } else if (batch.zero_copy && (result == -EOPNOTSUPP || result == -EINVAL)) {
    zero_copy_ = false;
    log_info("this kernel sends nothing without a copy: " + Error::from_errno(-result, "sendmsg_zc").message());
    result = 0;
  } else if (batch.zero_copy && (result == -ENOMEM || result == -ENOBUFS)) {
    batch.copy = true;
    result = 0;
  } else if (result == -EINTR || result == -EAGAIN) {
    result = 0;
  } else if (result < 0) {
    connection.sending = nullptr;
    end(connection);
    release(batch);
    return;
  }
  auto taken = static_cast<std::uint64_t>(result);
  batch.left -= taken;
  // What was taken is cut off the front.
  std::size_t first = 0;
  while (first < batch.message.msg_iovlen && taken >= batch.message.msg_iov[first].iov_len)
    taken -= batch.message.msg_iov[first++].iov_len;
  batch.message.msg_iov += first;
  batch.message.msg_iovlen -= first;
  if (taken > 0) {
    iovec& piece = batch.message.msg_iov[0];
    piece.iov_base = static_cast<std::byte*>(piece.iov_base) + taken;
    piece.iov_len -= taken;
  }
  if (batch.left > 0 && !connection.ending) {
    submit_send(batch);
    return;
  }
  connection.sending = nullptr;
  release(batch);
  advance(connection);
}

void Shard::Impl::release(SendBatch& batch) {
  if (batch.unfinished > 0 || batch.connection->sending == &batch) return;
  batches_.give_back(batch);
}

void Shard::Impl::end(Connection& connection) {
  if (connection.ending) return;
  connection.ending = true;
  shutdown(connection.socket.get(), SHUT_RDWR);
}

bool Shard::Impl::reap(Connection& connection) {
  if (!connection.ending || connection.operations > 0) return false;
  if (connection.sending != nullptr) {
    SendBatch& batch = *std::exchange(connection.sending, nullptr);
    release(batch);
  }
  connections_.remove_if([&](const std::unique_ptr<Connection>& each) { return each.get() == &connection; });
  return true;
}

}  // namespace infercluster::target
