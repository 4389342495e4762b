// SPDX-License-Identifier: Apache-2.0
// One command on a channel, from its capsule to its completion. Data goes to the target in the capsule, or in H2CData
// when the target asks for it: NVMe over TCP Transport Specification 1.0, section 3.3.2.
#include <algorithm>
#include <string>
#include <utility>

#include "base/assert.h"
#include "initiator/channel.h"

namespace infercluster::initiator {
namespace {

// Offsets of header fields, which terminations name.
constexpr std::uint32_t kCidField = 8;
constexpr std::uint32_t kCompletionCidField = 20;
constexpr std::uint32_t kLengthField = 16;

using Progress = nvme::PduReader::Progress;

}  // namespace

struct Channel::Exchange {
  std::uint16_t cid = 0;
  std::span<const std::byte> to_send;  // when asked
  std::uint32_t asked = 0;             // bytes of it
  std::uint32_t received = 0;          // bytes of the reply's data
  Data wanted = Data::all;
  Reply reply;
};

Result<Channel::Reply> Channel::command(nvme::Command command, std::span<const std::byte> to_send,
                                        std::uint32_t data_bytes, Data wanted) {
  IC_ASSERT(to_send.empty() || data_bytes == 0);
  const Clock::TimePoint deadline = this->deadline();
  const bool in_capsule = !to_send.empty() && options_.sending == Sending::in_capsule;
  command.cid = next_cid_++;
  command.sgl = {.address = 0,
                 .length = to_send.empty() ? data_bytes : static_cast<std::uint32_t>(to_send.size()),
                 .identifier = in_capsule ? nvme::kSglInCapsule : nvme::kSglTransport};
  const std::span<const std::byte> nothing;
  IC_CHECK(send_pdu({.type = nvme::PduType::command, .flags = 0, .body = command}, in_capsule ? to_send : nothing,
                    deadline));
  Exchange exchange{.cid = command.cid, .to_send = in_capsule ? nothing : to_send, .wanted = wanted, .reply = {}};
  exchange.reply.data.resize(data_bytes);
  const Status ran = run(exchange, deadline);
  if (!ran.ok()) {
    tell_why();
    return ran.error();
  }
  Reply& reply = exchange.reply;
  reply.data.resize(reply.status.ok() ? exchange.received : 0);
  return std::move(reply);
}

Status Channel::send_pdu(const nvme::Pdu& pdu, std::span<const std::byte> data, Clock::TimePoint deadline) {
  return send(nvme::encode_pdu(pdu, digests_, data, data_alignment_), deadline);
}

Status Channel::run(Exchange& exchange, Clock::TimePoint deadline) {
  for (;;) {
    IC_TRY(const Progress progress, receive(deadline));
    if (progress == Progress::header) IC_CHECK(place_data(exchange));
    if (progress != Progress::whole) continue;
    IC_TRY(const bool completed, on_whole(exchange, deadline));
    if (completed) break;
  }
  if (!exchange.reply.status.ok()) return {};
  if (exchange.asked != exchange.to_send.size()) {
    return refuse(nvme::FatalStatus::sequence_error, 0,
                  "a command that sends " + std::to_string(exchange.to_send.size()) + " bytes succeeded with " +
                      std::to_string(exchange.asked));
  }
  const std::size_t wanted = exchange.reply.data.size();
  if (exchange.received != wanted && exchange.wanted == Data::all) {
    return refuse(nvme::FatalStatus::sequence_error, 0,
                  "a command that wanted " + std::to_string(wanted) + " bytes succeeded with " +
                      std::to_string(exchange.received));
  }
  return {};
}

Status Channel::place_data(Exchange& exchange) {
  const auto* data = std::get_if<nvme::DataHeader>(&reader_.pdu().body);
  if (data == nullptr) return {};  // what a termination carries is dropped
  if (data->cid != exchange.cid)
    return refuse(nvme::FatalStatus::invalid_header_field, kCidField, "data of no command");
  const std::span<std::byte> place(exchange.reply.data);
  if (data->offset != exchange.received || data->length > place.size() - exchange.received)
    return refuse(nvme::FatalStatus::data_out_of_range, 0, "data that nobody asked for");
  reader_.place(place.subspan(exchange.received, data->length));
  return {};
}

// Whether that completes the command.
Result<bool> Channel::on_whole(Exchange& exchange, Clock::TimePoint deadline) {
  const nvme::Pdu& pdu = reader_.pdu();
  if (const auto* data = std::get_if<nvme::DataHeader>(&pdu.body)) {
    if (!reader_.data_intact()) return broken("the digest of its data is wrong");
    exchange.received += data->length;
    return (pdu.flags & nvme::kSuccessFlag) != 0;
  }
  if (const auto* ready = std::get_if<nvme::ReadyToTransfer>(&pdu.body)) {
    IC_CHECK(on_ready(exchange, *ready, deadline));
    return false;
  }
  if (const auto* completion = std::get_if<nvme::Completion>(&pdu.body)) {
    if (completion->cid != exchange.cid)
      return refuse(nvme::FatalStatus::invalid_header_field, kCompletionCidField, "a completion of no command");
    exchange.reply.status = completion->status;
    exchange.reply.result = completion->result;
    return true;
  }
  if (const auto* terminate = std::get_if<nvme::Terminate>(&pdu.body)) {
    return Error(ErrorCode::io,
                 peer_ + ": the target ended the connection: " + std::string(name_of(terminate->status)));
  }
  return refuse(nvme::FatalStatus::sequence_error, 0, "unexpected " + std::string(name_of(pdu.type)));
}

// The target asks for all of the data, once and in order, in as many pieces as it likes.
Status Channel::on_ready(Exchange& exchange, const nvme::ReadyToTransfer& ready, Clock::TimePoint deadline) {
  if (ready.cid != exchange.cid)
    return refuse(nvme::FatalStatus::invalid_header_field, kCidField, "it asks for data of no command");
  if (exchange.to_send.empty())
    return refuse(nvme::FatalStatus::sequence_error, 0, "it asks for data of a command that has none");
  if (ready.length == 0) return refuse(nvme::FatalStatus::invalid_header_field, kLengthField, "it asks for no data");
  if (ready.offset != exchange.asked || ready.length > exchange.to_send.size() - exchange.asked) {
    return refuse(nvme::FatalStatus::data_out_of_range, 0,
                  "it asks for " + std::to_string(ready.length) + " bytes from " + std::to_string(ready.offset) +
                      " where " + std::to_string(exchange.to_send.size()) + " are to be sent, and " +
                      std::to_string(exchange.asked) + " have been");
  }
  if (host_data_max_ == 0) return broken("it asks for data and takes 0 bytes of it at once (MAXH2CDATA)");
  exchange.asked += ready.length;
  for (std::uint32_t at = ready.offset; at < exchange.asked;) {
    const std::uint32_t piece = std::min(host_data_max_, exchange.asked - at);
    const bool last = at + piece == exchange.asked;
    IC_CHECK(send_pdu({.type = nvme::PduType::host_data,
                       .flags = last ? nvme::kLastFlag : std::uint8_t{0},
                       .body = nvme::DataHeader{.cid = ready.cid, .tag = ready.tag, .offset = at, .length = piece}},
                      exchange.to_send.subspan(at, piece), deadline));
    at += piece;
  }
  return {};
}

}  // namespace infercluster::initiator
