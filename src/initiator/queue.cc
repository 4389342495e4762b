// SPDX-License-Identifier: Apache-2.0
#include "initiator/queue.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/thread.h"

namespace infercluster::initiator {
namespace {

constexpr auto kTickMax = std::chrono::milliseconds(50);
constexpr unsigned kSlotBits = 8;
constexpr std::uint16_t kSlotMask = (1U << kSlotBits) - 1;
// Offsets of header fields, which terminations name.
constexpr std::uint32_t kDataCidField = 8;
constexpr std::uint32_t kCompletionCidField = 20;

// What the completion of a read says, as an error.
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

}  // namespace

Queue::Queue(std::unique_ptr<Channel> channel, const Options& options, Owner& owner)
    : options_(options), owner_(owner), channel_(std::move(channel)) {
  IC_ASSERT(options.entries >= 2 && options.entries <= 1U << kSlotBits);
  slots_.resize(options.entries - 1U);
  for (std::size_t i = slots_.size(); i-- > 0;) free_.push_back(static_cast<std::uint16_t>(i));
  unsent_.reserve(options.entries * nvme::kPreludeBytesMax);
  thread_ = start_thread("nvme-queue", [this] { run(); });
}

Queue::~Queue() {
  end();
  join();
}

void Queue::end() {
  shutdown(channel_->socket().get(), SHUT_RDWR);
}

void Queue::join() {
  if (thread_.joinable()) thread_.join();
}

bool Queue::has_room() const {
  const std::lock_guard lock(mutex_);
  return !lost_ && !free_.empty();
}

Queue::Start Queue::try_start(const QueuedRead& read) {
  IC_ASSERT(read.blocks >= 1 && read.memory.size() == std::uint64_t{read.blocks} << options_.block_bits);
  nvme::Command command = nvme::encode_read({.first_block = read.first_block, .blocks = read.blocks}, options_.nsid);
  command.sgl = {
      .address = 0, .length = static_cast<std::uint32_t>(read.memory.size()), .identifier = nvme::kSglTransport};
  {
    const std::lock_guard lock(mutex_);
    if (lost_) return Start::lost;
    if (free_.empty()) return Start::full;
    if (free_.size() == slots_.size()) busy_since_ = steady_clock().now();
    const std::uint16_t index = free_.back();
    free_.pop_back();
    Slot& slot = slots_[index];
    slot.busy = true;
    slot.generation = static_cast<std::uint16_t>((slot.generation + 1U) & (UINT16_MAX >> kSlotBits));
    slot.read = read;
    slot.received = 0;
    command.cid = static_cast<std::uint16_t>(slot.generation << kSlotBits | index);
  }
  std::array<std::byte, nvme::kPreludeBytesMax> prelude{};
  const std::size_t length =
      nvme::encode_prelude({.type = nvme::PduType::command, .flags = 0, .body = command},
                           {.digests = channel_->digests(), .data_length = 0, .data_alignment = 4}, prelude);
  // From here on the read ends through the owner: when it cannot be sent, the thread finds the connection's end.
  const std::lock_guard lock(send_mutex_);
  const auto capsule = std::span<const std::byte>(prelude).first(length);
  std::size_t sent = 0;
  if (unsent_.empty()) {
    Result<std::size_t> taken = channel_->send_some(capsule);
    if (!taken.ok()) {
      end();
      return Start::started;
    }
    sent = *taken;
  }
  if (sent < length) {
    unsent_.insert(unsent_.end(), capsule.begin() + static_cast<std::ptrdiff_t>(sent), capsule.end());
    has_unsent_.store(true);
  }
  return Start::started;
}

// By the thread alone.
Status Queue::flush() {
  const std::lock_guard lock(send_mutex_);
  IC_TRY(const std::size_t sent, channel_->send_some(unsent_));
  unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<std::ptrdiff_t>(sent));
  has_unsent_.store(!unsent_.empty());
  return {};
}

void Queue::run() {
  const Status end = serve();
  IC_ASSERT(!end.ok());
  {
    const std::lock_guard lock(send_mutex_);
    if (unsent_.empty()) channel_->tell_why();
    // Nothing is received any more: the memory of all reads is at rest.
    this->end();
  }
  end_all(end.error());
}

// How long the thread waits at once, and so how late it may be with what is due.
Clock::Duration Queue::tick() const {
  return std::clamp<Clock::Duration>(options_.silence_max / 8, std::chrono::milliseconds(1), kTickMax);
}

Status Queue::serve() {
  using Progress = nvme::PduReader::Progress;
  Clock::TimePoint heard = steady_clock().now();
  Clock::TimePoint check = heard + tick();
  for (;;) {
    if (has_unsent_.load()) IC_CHECK(flush());
    const Result<Progress> progress = channel_->receive(check);
    const Clock::TimePoint now = steady_clock().now();
    if (progress.ok()) {
      heard = now;
      if (*progress == Progress::header) IC_CHECK(on_header());
      if (*progress == Progress::whole) IC_CHECK(on_whole());
    } else if (progress.error().code() != ErrorCode::timed_out) {
      if (progress.error().kind() == Channel::kDigestKind) owner_.digest_wrong();
      return progress.error();
    }
    if (now < check) continue;
    // What lay ready came first: a process that was stopped itself finds the answers before it blames the target.
    IC_CHECK(check_time(now, heard));
    check = now + tick();
  }
}

Status Queue::check_time(Clock::TimePoint now, Clock::TimePoint heard) {
  const std::lock_guard lock(mutex_);
  if (free_.size() == slots_.size()) return {};
  const bool late = std::any_of(slots_.begin(), slots_.end(),
                                [&](const Slot& slot) { return slot.busy && slot.read.deadline <= now; });
  if (!late && now - std::max(heard, busy_since_) < options_.silence_max) return {};
  return Error(ErrorCode::timed_out,
               channel_->peer() + (late ? ": the target did not answer a read in time" : ": the target fell silent"))
      .with_errno(ETIMEDOUT)
      .with_hint("Is it stopped, or the network between cut?");
}

// `field`: where the PDU names the command.
Result<Queue::Slot*> Queue::slot_of(std::uint16_t cid, std::uint32_t field) {
  const std::size_t index = cid & kSlotMask;
  const std::lock_guard lock(mutex_);
  if (index >= slots_.size() || !slots_[index].busy || slots_[index].generation != cid >> kSlotBits) {
    return channel_->refuse(nvme::FatalStatus::invalid_header_field, field, "an answer to no command");
  }
  return &slots_[index];
}

Status Queue::on_header() {
  const nvme::Pdu& pdu = channel_->reader().pdu();
  const auto* data = std::get_if<nvme::DataHeader>(&pdu.body);
  if (data == nullptr) return {};  // of a termination
  IC_TRY(Slot * slot, slot_of(data->cid, kDataCidField));
  const std::size_t whole = slot->read.memory.size();
  if (data->offset != slot->received || data->length > whole - slot->received)
    return channel_->refuse(nvme::FatalStatus::data_out_of_range, 0, "data out of order or out of range");
  channel_->reader().place(slot->read.memory.subspan(slot->received, data->length));
  return {};
}

Status Queue::on_whole() {
  const nvme::PduReader& reader = channel_->reader();
  const nvme::Pdu& pdu = reader.pdu();
  if (const auto* data = std::get_if<nvme::DataHeader>(&pdu.body);
      data != nullptr && pdu.type == nvme::PduType::target_data) {
    IC_TRY(Slot * slot, slot_of(data->cid, kDataCidField));
    if (!reader.data_intact()) {
      at_fault_ = slot->read.ticket;
      owner_.digest_wrong();
      return Error(ErrorCode::corrupt, channel_->peer() + ": the digest of data that came is wrong")
          .with_errno(EBADMSG)
          .with_hint(
              "The network or the target's disk damages it: read another copy, and have the target's owner check");
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
  return channel_->refuse(nvme::FatalStatus::sequence_error, 0, "unexpected " + std::string(name_of(pdu.type)));
}

Status Queue::complete(std::uint16_t cid, const nvme::CommandStatus& status) {
  IC_TRY(Slot * slot, slot_of(cid, kCompletionCidField));
  if (status.ok() && slot->received != slot->read.memory.size())
    return channel_->refuse(nvme::FatalStatus::sequence_error, 0, "a read succeeded without all of its data");
  void* ticket = nullptr;
  {
    const std::lock_guard lock(mutex_);
    ticket = slot->read.ticket;
    slot->busy = false;
    free_.push_back(static_cast<std::uint16_t>(cid & kSlotMask));
  }
  if (status.ok()) {
    owner_.read_ended(ticket, {});
    return {};
  }
  const bool definite = status.retry == nvme::Retry::will_not_help || status.type == nvme::StatusType::vendor;
  owner_.read_ended(ticket, {.status = error_of(status, channel_->peer()),
                             .again = definite ? ReadEnd::Again::no : ReadEnd::Again::counted});
  return {};
}

void Queue::end_all(const Error& why) {
  std::vector<QueuedRead> all;
  {
    const std::lock_guard lock(mutex_);
    lost_ = true;
    for (Slot& slot : slots_) {
      if (slot.busy) all.push_back(slot.read);
      slot.busy = false;
    }
  }
  owner_.queue_lost(why);
  for (const QueuedRead& read : all) {
    owner_.read_ended(
        read.ticket,
        {.status = why, .again = read.ticket == at_fault_ ? ReadEnd::Again::counted : ReadEnd::Again::uncounted});
  }
}

}  // namespace infercluster::initiator
