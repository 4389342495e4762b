// SPDX-License-Identifier: Apache-2.0
#include "initiator/queue.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/assert.h"
#include "base/thread.h"

namespace infercluster::initiator {
namespace {

// How long the thread waits when nothing is under way; a new read has a later deadline in any case.
constexpr auto kIdleWait = std::chrono::milliseconds(50);
constexpr unsigned kSlotBits = 8;
constexpr std::uint16_t kSlotMask = (1U << kSlotBits) - 1;

}  // namespace

Error error_of(const nvme::CommandStatus& status, const std::string& peer) {
  const std::string text = peer + ": a read failed: " + status.to_string();
  if (status == nvme::kExtentGone) {
    return Error(ErrorCode::not_found, text)
        .with_errno(ENODATA)
        .with_hint("The object was removed there: ask for where it is now");
  }
  if (status.type == nvme::StatusType::media) {
    return Error(ErrorCode::corrupt, text)
        .with_errno(ENODATA)
        .with_hint("Read it from another copy; the target's log names the file");
  }
  return Error(ErrorCode::io, text).with_errno(EIO);
}

Queue::Queue(std::unique_ptr<Channel> channel, const Options& options)
    : options_(options), channel_(std::move(channel)) {
  IC_ASSERT(options.entries >= 2 && options.entries <= 1U << kSlotBits);
  slots_.resize(options.entries - 1U);
  for (std::size_t i = slots_.size(); i-- > 0;) free_.push_back(static_cast<std::uint16_t>(i));
  thread_ = start_thread("nvme-queue", [this] { run(); });
}

Queue::~Queue() {
  end();
  thread_.join();
}

void Queue::end() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  shutdown(channel_->socket().get(), SHUT_RDWR);
}

std::optional<Error> Queue::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

Error Queue::broken(std::string_view what) const {
  return Error(ErrorCode::corrupt, channel_->peer() + ": the target breaks the NVMe/TCP protocol: " + std::string(what))
      .with_errno(EPROTO);
}

Status Queue::start(BlockRead read) {
  IC_ASSERT(read.blocks >= 1 && read.memory.size() == std::uint64_t{read.blocks} << options_.block_bits);
  nvme::Command command = nvme::encode_read({.first_block = read.first_block, .blocks = read.blocks}, options_.nsid);
  command.sgl = {
      .address = 0, .length = static_cast<std::uint32_t>(read.memory.size()), .identifier = nvme::kSglTransport};
  const Clock::TimePoint deadline = steady_clock().now() + options_.deadline;
  {
    std::unique_lock lock(mutex_);
    entry_free_.wait(lock, [&] { return lost_ || !free_.empty(); });
    if (lost_) return *lost_;
    const std::uint16_t index = free_.back();
    free_.pop_back();
    Slot& slot = slots_[index];
    slot.busy = true;
    slot.generation = static_cast<std::uint16_t>((slot.generation + 1U) & (UINT16_MAX >> kSlotBits));
    slot.read = std::move(read);
    slot.received = 0;
    slot.deadline = deadline;
    command.cid = static_cast<std::uint16_t>(slot.generation << kSlotBits | index);
  }
  std::array<std::byte, nvme::kPreludeBytesMax> prelude{};
  const std::size_t length =
      nvme::encode_prelude({.type = nvme::PduType::command, .flags = 0, .body = command},
                           {.digests = channel_->digests(), .data_length = 0, .data_alignment = 4}, prelude);
  const std::lock_guard lock(send_mutex_);
  // From here on the read completes through `done`: when it cannot be sent, the thread finds the connection's end.
  if (const Status sent = channel_->send(std::span(prelude).first(length), deadline); !sent.ok()) {
    shutdown(channel_->socket().get(), SHUT_RDWR);
  }
  return {};
}

void Queue::run() {
  const Status end = serve();
  IC_ASSERT(!end.ok());
  // Nothing is received any more: the memory of all reads is at rest.
  shutdown(channel_->socket().get(), SHUT_RDWR);
  fail_all(end.error());
}

Status Queue::serve() {
  using Progress = nvme::PduReader::Progress;
  for (;;) {
    const Clock::TimePoint now = steady_clock().now();
    const Clock::TimePoint due = next_deadline();
    if (due <= now) {
      return Error(ErrorCode::timed_out, channel_->peer() + ": the target did not answer a read in time")
          .with_errno(ETIMEDOUT)
          .with_hint("Is it stopped, or the network between cut?");
    }
    Result<Progress> progress = channel_->receive(std::min(due, now + kIdleWait));
    if (!progress.ok()) {
      const bool patient = progress.error().code() == ErrorCode::timed_out;
      if (patient) continue;  // the deadlines of the reads decide
      return std::move(progress).error();
    }
    if (*progress == Progress::header) IC_CHECK(on_header());
    if (*progress == Progress::whole) IC_CHECK(on_whole());
  }
}

Clock::TimePoint Queue::next_deadline() const {
  const std::lock_guard lock(mutex_);
  Clock::TimePoint first = Clock::TimePoint::max();
  for (const Slot& slot : slots_) {
    if (slot.busy) first = std::min(first, slot.deadline);
  }
  return first;
}

Result<Queue::Slot*> Queue::slot_of(std::uint16_t cid) {
  const std::size_t index = cid & kSlotMask;
  const std::lock_guard lock(mutex_);
  if (index >= slots_.size() || !slots_[index].busy || slots_[index].generation != cid >> kSlotBits) {
    return broken("an answer to no command");
  }
  return &slots_[index];
}

Status Queue::on_header() {
  const nvme::Pdu& pdu = channel_->reader().pdu();
  const auto* data = std::get_if<nvme::DataHeader>(&pdu.body);
  if (data == nullptr) return {};  // of a termination
  IC_TRY(Slot * slot, slot_of(data->cid));
  const std::size_t whole = slot->read.memory.size();
  if (data->offset != slot->received || data->length > whole - slot->received)
    return broken("data out of order or out of range");
  channel_->reader().place(slot->read.memory.subspan(slot->received, data->length));
  return {};
}

Status Queue::on_whole() {
  const nvme::PduReader& reader = channel_->reader();
  const nvme::Pdu& pdu = reader.pdu();
  if (const auto* data = std::get_if<nvme::DataHeader>(&pdu.body);
      data != nullptr && pdu.type == nvme::PduType::target_data) {
    IC_TRY(Slot * slot, slot_of(data->cid));
    if (!reader.data_intact()) {
      return Error(ErrorCode::corrupt, channel_->peer() + ": the digest of data that came is wrong")
          .with_errno(EBADMSG)
          .with_hint(
              "Either the network or the target's disk damaged it: it is read anew, and its owner should verify it");
    }
    slot->received += data->length;
    return (pdu.flags & nvme::kSuccessFlag) != 0 ? complete(data->cid, nvme::kSuccess) : Status();
  }
  if (const auto* completion = std::get_if<nvme::Completion>(&pdu.body))
    return complete(completion->cid, completion->status);
  if (const auto* terminate = std::get_if<nvme::Terminate>(&pdu.body)) {
    return Error(ErrorCode::io,
                 channel_->peer() + ": the target ended the connection: " + std::string(name_of(terminate->status)))
        .with_errno(ECONNRESET);
  }
  return broken("unexpected " + std::string(name_of(pdu.type)));
}

Status Queue::complete(std::uint16_t cid, const nvme::CommandStatus& status) {
  IC_TRY(Slot * slot, slot_of(cid));
  if (status.ok() && slot->received != slot->read.memory.size())
    return broken("a read succeeded without all of its data");
  ReadDone done;
  {
    const std::lock_guard lock(mutex_);
    done = std::exchange(slot->read.done, nullptr);
    slot->busy = false;
    free_.push_back(static_cast<std::uint16_t>(cid & kSlotMask));
  }
  entry_free_.notify_one();
  done(status.ok() ? Status() : Status(error_of(status, channel_->peer())));
  return {};
}

void Queue::fail_all(const Error& why) {
  std::vector<ReadDone> all;
  {
    const std::lock_guard lock(mutex_);
    lost_ = ending_ ? Error(ErrorCode::cancelled, channel_->peer() + ": the connection was ended").with_errno(ECANCELED)
                    : why;
    for (Slot& slot : slots_) {
      if (!slot.busy) continue;
      all.push_back(std::exchange(slot.read.done, nullptr));
      slot.busy = false;
    }
  }
  entry_free_.notify_all();
  const Error told = *lost();
  for (const ReadDone& done : all) done(told);
}

}  // namespace infercluster::initiator
