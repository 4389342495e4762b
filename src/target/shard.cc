// SPDX-License-Identifier: Apache-2.0
#include "target/shard.h"

#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "checksum/crc32c.h"
#include "target/shard_internal.h"

namespace infercluster::target {
namespace {

constexpr unsigned kRingEntries = 1024;
constexpr unsigned kCompletionsAtOnce = 64;
constexpr auto kTick = std::chrono::milliseconds(100);
// A connection that has not begun to speak by then is somebody else's (Linux gives a target 10 s for the same).
constexpr auto kInitializationTimeout = std::chrono::seconds(10);
// What a peer at fault is told goes out within this time, or not at all.
constexpr auto kGoodbyeTimeout = std::chrono::seconds(2);
// A host that takes nothing for so long is gone, and holds memory that others wait for.
constexpr auto kSendTimeout = std::chrono::seconds(30);
// The same, when no memory is left and others do wait.
constexpr auto kSendTimeoutWhenShort = std::chrono::seconds(5);

}  // namespace

Result<std::unique_ptr<Shard>> Shard::open(const Shared& shared, const ShardOptions& options) {
  IC_TRY(Buffers buffers, Buffers::allocate(options.buffers, kReadBlocksMax * kBlockBytes));
  Fd wake(eventfd(0, EFD_CLOEXEC));
  if (!wake.valid()) return Error::from_errno(errno, "cannot make an eventfd");
  auto impl = std::make_unique<Impl>(shared, options, std::move(buffers), std::move(wake));
  IC_CHECK(impl->start_ring());
  return std::unique_ptr<Shard>(new Shard(std::move(impl)));
}

Shard::Shard(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Shard::~Shard() = default;

Status Shard::run() {
  return impl_->run();
}
void Shard::stop() {
  impl_->stop();
}
const ShardCounters& Shard::counters() const {
  return impl_->counters;
}

Status Shard::Impl::start_ring() {
  // Completions come to this thread when it asks for them, not by interrupting it; kernels before 6.1 know no such
  // ring.
  constexpr unsigned kOfOneThread =
      IORING_SETUP_CLAMP | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_R_DISABLED;
  int result = io_uring_queue_init(kRingEntries, &ring_, kOfOneThread);
  if (result == -EINVAL) result = io_uring_queue_init(kRingEntries, &ring_, IORING_SETUP_CLAMP);
  if (result < 0) {
    return Error::from_errno(-result, "cannot make an io_uring for the target")
        .with_hint(
            "The target needs io_uring: allow it in the container's seccomp profile, or set "
            "kernel.io_uring_disabled=0");
  }
  ring_open_ = true;
  const std::vector<std::byte> zeros(kBlockBytes);
  zero_block_crc_ = checksum::crc32c(zeros);
  return {};
}

Shard::Impl::~Impl() {
  IC_ASSERT(connections_.empty() && operations_ == 0);
  if (ring_open_) io_uring_queue_exit(&ring_);
}

void Shard::Impl::stop() {
  stopping_.store(true);
  const std::uint64_t one = 1;
  // An eventfd takes it unless its counter is full, and then it wakes as well.
  [[maybe_unused]] const ssize_t written = write(wake_fd_.get(), &one, sizeof(one));
}

Status Shard::Impl::run() {
  // From here on it is this thread's. Debian 12's liburing declares io_uring_enable_rings() and lacks it.
  if ((ring_.flags & IORING_SETUP_R_DISABLED) != 0)
    IC_ASSERT(syscall(SYS_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0) == 0);
  arm_accept();
  arm_wake();
  Clock::TimePoint next_tick = shared_.clock->now() + kTick;
  while (!ending_all_ || operations_ > 0 || !connections_.empty()) {
    io_uring_cqe* first = nullptr;
    __kernel_timespec timeout{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(kTick).count()};
    const int waited = io_uring_submit_and_wait_timeout(&ring_, &first, 1, &timeout, nullptr);
    if (waited < 0 && waited != -ETIME && waited != -EINTR && waited != -EAGAIN && waited != -EBUSY) {
      return Error::from_errno(-waited, "the target's io_uring failed");
    }
    std::array<io_uring_cqe*, kCompletionsAtOnce> completions{};
    unsigned count = 0;
    while ((count = io_uring_peek_batch_cqe(&ring_, completions.data(), kCompletionsAtOnce)) > 0) {
      for (unsigned i = 0; i < count; ++i) {
        const io_uring_cqe completion = *completions[i];
        io_uring_cqe_seen(&ring_, completions[i]);
        handle(completion);
      }
    }
    if (shared_.clock->now() >= next_tick) {
      tick();
      next_tick = shared_.clock->now() + kTick;
    }
  }
  return {};
}

io_uring_sqe* Shard::Impl::request(Operation& operation) {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  while (sqe == nullptr) {
    io_uring_submit(&ring_);
    sqe = io_uring_get_sqe(&ring_);
  }
  if (operation.connection != nullptr) {
    ++operation.connection->operations;
  } else {
    ++operations_;
  }
  return sqe;
}

void Shard::Impl::handle(const io_uring_cqe& completion) {
  auto* operation = static_cast<Operation*>(io_uring_cqe_get_data(&completion));
  if (operation == nullptr) return;  // of a cancellation
  const bool more = (completion.flags & IORING_CQE_F_MORE) != 0;
  Connection* connection = operation->connection;
  if (!more) --(connection != nullptr ? connection->operations : operations_);
  switch (operation->kind) {
    case Operation::Kind::accept:
      accepted(completion.res, more);
      break;
    case Operation::Kind::wake:
      if (!stopping_.load()) arm_wake();
      break;
    case Operation::Kind::receive:
      received(*connection, completion.res);
      break;
    case Operation::Kind::send:
      sent(static_cast<SendBatch&>(*operation), completion.res, completion.flags);
      break;
    case Operation::Kind::read:
      read(static_cast<FileRead&>(*operation), completion.res);
      break;
  }
  if (stopping_.load() && !ending_all_) end_all();
  if (connection != nullptr) reap(*connection);
  feed_starved();
}

void Shard::Impl::end_all() {
  ending_all_ = true;
  for (const auto& each : connections_) end(*each);
  if (operations_ == 0) return;
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  while (sqe == nullptr) {
    io_uring_submit(&ring_);
    sqe = io_uring_get_sqe(&ring_);
  }
  io_uring_prep_cancel(sqe, &accept_, 0);
  io_uring_sqe_set_data(sqe, nullptr);
}

// Connections that wait for a buffer take those that have become free.
void Shard::Impl::feed_starved() {
  if (!starved_ || buffers_.available() == 0) return;
  starved_ = false;
  for (const auto& connection : connections_) advance(*connection);
}

bool Shard::Impl::overdue(const Connection& connection, Clock::TimePoint now) const {
  if (!connection.initialized && now - connection.since > kInitializationTimeout) return true;
  if (connection.no_more_input && now - connection.since > kGoodbyeTimeout) return true;
  const bool is_short = starved_ && buffers_.available() == 0;
  const auto patience = is_short ? kSendTimeoutWhenShort : kSendTimeout;
  return connection.sending != nullptr && now - connection.progress > patience;
}

void Shard::Impl::tick() {
  const Clock::TimePoint now = shared_.clock->now();
  if (std::exchange(accept_again_, false) && !ending_all_) arm_accept();
  shared_.controllers->close_silent(now);
  for (auto at = connections_.begin(); at != connections_.end();) {
    Connection& connection = **at++;
    if (connection.session.authentication_overdue()) {
      refuse_unauthenticated(connection);
      end(connection);
    }
    if (overdue(connection, now) || connection.session.ended_by_controller()) end(connection);
    reap(connection);
  }
  feed_starved();  // with what those had that went
}

// A host that leaves, or falls silent, before it has proven itself as it has to.
void Shard::Impl::refuse_unauthenticated(Connection& connection) {
  if (connection.ending) return;
  if (const std::optional<std::string> why = connection.session.refuse_unauthenticated())
    log_warning(connection.peer + ": connection ended: " + *why);
  count(connection);
}

void Shard::Impl::count(Connection& connection) {
  const SessionCounters& now = connection.session.counters();
  SessionCounters& before = connection.counted;
  counters.commands += now.commands - before.commands;
  counters.reads += now.reads - before.reads;
  counters.bytes += now.bytes - before.bytes;
  counters.digests_combined += now.digests_combined - before.digests_combined;
  counters.refused += now.refused - before.refused;
  before = now;
}

// What is sent is what the object was when it was added. With data digests the host finds that out, from the CRC
// that is combined here without a look at the data; else this does.
nvme::CommandStatus Shard::Impl::verify(const Connection& connection, const PendingRead& read,
                                        std::span<const std::byte> data, std::uint32_t& crc) {
  const bool look = !connection.session.data_digests();
  std::uint64_t at = 0;
  std::uint32_t whole = 0;
  for (std::size_t i = 0; i < read.pieces.count; ++i) {
    const Piece& piece = read.pieces.list[i];
    for (std::uint32_t block = 0; block < piece.blocks; ++block, at += kBlockBytes) {
      const std::uint32_t expected = piece.object ? piece.object->crc(piece.first_block + block) : zero_block_crc_;
      if (!look) {
        whole = checksum::crc32c_combine(whole, expected, kBlockBytes);
        continue;
      }
      if (!piece.object || piece.object->verified(piece.first_block + block)) continue;
      ++counters.blocks_verified;
      if (checksum::crc32c(data.subspan(at, kBlockBytes)) == expected) {
        piece.object->set_verified(piece.first_block + block);
        continue;
      }
      ++counters.blocks_corrupt;
      log_error(piece.object->path() + ": offset " + std::to_string((piece.first_block + block) * kBlockBytes) +
                ": the block is no longer what it was when the file was added. Nothing of it was sent. Check the disk, "
                "or add the file again");
      return nvme::kUnrecoveredReadError;
    }
  }
  crc = whole;
  return nvme::kSuccess;
}

}  // namespace infercluster::target
