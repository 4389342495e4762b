// SPDX-License-Identifier: Apache-2.0
#include "target/session.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "nvme/bytes.h"

namespace infercluster::target {
namespace {

constexpr std::uint32_t kInCapsuleMax = 8192;  // what Linux may send on the admin queue; Connect's 1,024 go everywhere
constexpr std::uint32_t kHostDataMax = 128
                                       << 10;  // MAXH2CDATA: nothing that we ask for, and the field must not be small
constexpr std::uint8_t kAlignmentMax = 31;     // HPDA: data begins at multiples of 4 to 128
constexpr std::uint32_t kPfvField = 8;
constexpr std::uint32_t kHpdaField = 10;
constexpr std::uint16_t kNoSqHead = 0xFFFF;

nvme::Reply failure(nvme::CommandStatus status) {
  return {.status = status, .result = 0, .data = {}, .held = false};
}

}  // namespace

Session::Session(Environment environment)
    : environment_(std::move(environment)),
      reader_(nvme::Side::target, {.data_max = kHostDataMax, .in_capsule_max = kInCapsuleMax, .data_alignment = 4}) {}

Session::~Session() {
  if (slot_) environment_.controllers->queue_closed(slot_, queue_id_);
}

bool Session::receive(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::span<std::byte> room = reader_.room();
    const std::size_t count = std::min(room.size(), bytes.size());
    std::copy_n(bytes.begin(), count, room.begin());
    bytes = bytes.subspan(count);
    switch (reader_.filled(count)) {
      case nvme::PduReader::Progress::more:
        break;
      case nvme::PduReader::Progress::header:
        if (reader_.pdu().type == nvme::PduType::command) {
          capsule_data_.resize(reader_.data_length());
          reader_.place(capsule_data_);
        }
        break;
      case nvme::PduReader::Progress::whole:
        if (!on_pdu()) return false;
        capsule_data_.clear();
        break;
      case nvme::PduReader::Progress::fault:
        return terminate(reader_.fault(), reader_.header_bytes());
    }
  }
  return true;
}

bool Session::on_pdu() {
  const nvme::Pdu& pdu = reader_.pdu();
  switch (pdu.type) {
    case nvme::PduType::initialize_request:
      return on_initialize(std::get<nvme::InitializeRequest>(pdu.body));
    case nvme::PduType::command:
      return on_command(std::get<nvme::Command>(pdu.body));
    case nvme::PduType::host_terminate:
      fault_ = "the host ended the connection: " + std::string(name_of(std::get<nvme::Terminate>(pdu.body).status));
      return false;
    default:
      // Data that nobody asked for: this target never sends R2T.
      return terminate(nvme::FatalStatus::sequence_error, 0, "unasked " + std::string(name_of(pdu.type)));
  }
}

bool Session::on_initialize(const nvme::InitializeRequest& request) {
  if (request.format != 0) {
    return terminate(nvme::FatalStatus::unsupported_parameter, kPfvField,
                     "PDU format version " + std::to_string(request.format));
  }
  if (request.alignment > kAlignmentMax) {
    return terminate(nvme::FatalStatus::invalid_header_field, kHpdaField, "HPDA " + std::to_string(request.alignment));
  }
  data_alignment_ = 4U * (request.alignment + 1U);
  send({.type = nvme::PduType::initialize_response,
        .body = nvme::InitializeResponse{
            .format = 0, .alignment = 0, .digests = request.digests, .host_data_max = kHostDataMax}});
  digests_ = request.digests;
  reader_.use(digests_);
  return true;
}

bool Session::on_command(const nvme::Command& command) {
  ++counters_.commands;
  if (!slot_) return on_first_command(command);
  slot_->heard(environment_.clock->now());
  // A queue of N entries holds N - 1 commands; what was answered is counted off.
  if (outstanding_ >= queue_size_ + 1U) {
    return terminate(nvme::FatalStatus::sequence_error, 0, "more commands at once than the queue has entries");
  }
  ++outstanding_;
  if (flow_control_) sq_head_ = static_cast<std::uint16_t>((sq_head_ + 1U) % (queue_size_ + 1U));
  if (!reader_.data_intact()) {
    answer(command, failure(nvme::kTransientTransportError));
  } else if (authentication_ && QueueAuthentication::concerns(command)) {
    return on_authentication(command);
  } else if (authentication_ && !authentication_->authenticated()) {
    answer(command, failure(nvme::kAuthenticationRequired));
  } else if (queue_id_ == 0) {
    on_admin(command);
  } else {
    on_io(command);
  }
  return true;
}

bool Session::on_first_command(const nvme::Command& command) {
  outstanding_ = 1;
  const bool connect = command.opcode == nvme::kFabrics && nvme::fabrics_type(command) == nvme::FabricsType::connect;
  const auto refuse = [&](const nvme::Reply& reply) {
    answer(command, reply);
    return true;  // the host may try again on this connection, or leave
  };
  if (!reader_.data_intact()) return refuse(failure(nvme::kTransientTransportError));
  if (!connect) return refuse(failure(nvme::kCommandSequenceError));
  if (command.sgl.identifier != nvme::kSglInCapsule || command.sgl.address != 0)
    return refuse(failure(nvme::kSglTypeInvalid));
  if (command.sgl.length != nvme::kConnectDataBytes || capsule_data_.size() != nvme::kConnectDataBytes) {
    return refuse(failure(nvme::kDataSglLengthInvalid));
  }
  const nvme::Connect parameters = nvme::decode_connect(command);
  const nvme::ConnectData data = nvme::decode_connect_data(
      std::span<const std::byte, nvme::kConnectDataBytes>(capsule_data_.data(), nvme::kConnectDataBytes));
  Controllers::Opened opened =
      environment_.controllers->open(parameters, data, {.loopback = environment_.loopback}, environment_.clock->now());
  if (const auto* reply = std::get_if<nvme::Reply>(&opened)) return refuse(*reply);
  slot_ = std::get<std::shared_ptr<ControllerSlot>>(std::move(opened));
  queue_id_ = parameters.queue_id;
  queue_size_ = parameters.queue_size;
  flow_control_ = (parameters.attributes & nvme::kConnectNoFlowControl) == 0;
  sq_head_ = 1;
  nvme::Reply accepted;
  if (const nvme::Credentials* credentials = slot_->credentials(); credentials != nullptr) {
    authentication_.emplace(*credentials,
                            nvme::AuthParties{.host_nqn = data.host_nqn, .subsystem_nqn = data.subsystem_nqn},
                            environment_.clock->now() + environment_.controllers->limits().authentication_timeout);
  }
  accepted.result = nvme::encode(
      nvme::Connected{.controller_id = slot_->id(), .authentication_required = authentication_.has_value()});
  answer(command, std::move(accepted));
  return true;
}

bool Session::on_authentication(const nvme::Command& command) {
  answer(command, authentication_->answer(command, capsule_data_));
  if (!authentication_->failed()) return true;
  fault_ = *refuse_unauthenticated();
  return false;
}

bool Session::authentication_overdue() const {
  return authentication_ && authentication_->overdue(environment_.clock->now());
}

std::optional<std::string> Session::refuse_unauthenticated() {
  if (!authentication_ || authentication_->authenticated()) return std::nullopt;
  ++counters_.refused;
  return authentication_->refusal();
}

void Session::on_admin(const nvme::Command& command) {
  nvme::Reply reply = slot_->admin(command, environment_.log);
  if (reply.held) {
    // It stands beside the queue until there is an event, and must not count against its entries.
    --outstanding_;
    ++events_held_;
    return;
  }
  answer(command, std::move(reply));
}

void Session::on_io(const nvme::Command& command) {
  // Of Fabrics commands an I/O queue carries those of authentication, and this one has none.
  if (command.opcode == nvme::kFabrics) return answer(command, failure(nvme::kInvalidOpcode));
  std::variant<nvme::ReadCommand, nvme::Reply> taken = slot_->io(command);
  if (auto* reply = std::get_if<nvme::Reply>(&taken)) return answer(command, std::move(*reply));
  const nvme::ReadCommand& read = std::get<nvme::ReadCommand>(taken);
  std::optional<Pieces> pieces = environment_.space->find(read.first_block, read.blocks);
  if (!pieces) return answer(command, failure(nvme::kExtentGone));
  ++counters_.reads;
  reads_.push_back({.cid = command.cid, .bytes = read.blocks << nvme::kBlockBits, .pieces = *std::move(pieces)});
}

std::optional<PendingRead> Session::next_read() {
  if (reads_.empty()) return std::nullopt;
  PendingRead read = std::move(reads_.front());
  reads_.pop_front();
  return read;
}

void Session::read_done(const PendingRead& read, ReadResult result) {
  if (!result.status.ok()) {
    send_completion(read.cid, result.status, 0);
    return;
  }
  IC_ASSERT(result.data.size() == read.bytes);
  // Without flow control nothing else need be said: the last PDU of data says that the command succeeded.
  const bool alone = !flow_control_;
  const auto flags = static_cast<std::uint8_t>(nvme::kLastFlag | (alone ? nvme::kSuccessFlag : 0));
  Outgoing outgoing;
  outgoing.data = result.data;
  outgoing.held = std::move(result.held);
  counters_.bytes += read.bytes;
  if (digests_.data) ++counters_.digests_combined;
  send({.type = nvme::PduType::target_data,
        .flags = flags,
        .body = nvme::DataHeader{.cid = read.cid, .tag = 0, .offset = 0, .length = read.bytes}},
       std::move(outgoing), result.crc);
  if (alone) {
    --outstanding_;
  } else {
    send_completion(read.cid, nvme::kSuccess, 0);
  }
}

// The reply to a command that is no read of blocks: its data, if any, then its completion.
void Session::answer(const nvme::Command& command, nvme::Reply reply) {
  if (!reply.data.empty()) {
    const auto length = static_cast<std::uint32_t>(reply.data.size());
    Outgoing outgoing;
    outgoing.owned = std::move(reply.data);
    outgoing.data = outgoing.owned;
    const std::uint32_t crc = digests_.data ? nvme::digest_of(outgoing.data) : 0;
    send({.type = nvme::PduType::target_data,
          .flags = nvme::kLastFlag,
          .body = nvme::DataHeader{.cid = command.cid, .tag = 0, .offset = 0, .length = length}},
         std::move(outgoing), crc);
  }
  send_completion(command.cid, reply.status, reply.result);
}

void Session::send_completion(std::uint16_t cid, nvme::CommandStatus status, std::uint64_t result) {
  IC_ASSERT(outstanding_ > 0);
  --outstanding_;
  if (!status.ok()) ++counters_.errors;
  send({.type = nvme::PduType::response,
        .body = nvme::Completion{.result = result,
                                 .sq_head = flow_control_ ? sq_head_ : kNoSqHead,
                                 .sq_id = 0,
                                 .cid = cid,
                                 .status = status}});
}

void Session::send(const nvme::Pdu& pdu, Outgoing outgoing, std::uint32_t data_crc) {
  const auto length = static_cast<std::uint32_t>(outgoing.data.size());
  std::array<std::byte, nvme::kPreludeBytesMax> prelude{};
  outgoing.prelude_bytes = nvme::encode_prelude(
      pdu, {.digests = digests_, .data_length = length, .data_alignment = data_alignment_}, prelude);
  IC_ASSERT(outgoing.prelude_bytes <= outgoing.prelude.size());
  std::copy_n(prelude.begin(), outgoing.prelude_bytes, outgoing.prelude.begin());
  if (pdu.type == nvme::PduType::target_data && digests_.data && length > 0) {
    nvme::store<std::uint32_t>(outgoing.digest, 0, data_crc);
    outgoing.digest_bytes = nvme::kDigestBytes;
  }
  outgoing_.push_back(std::move(outgoing));
}

bool Session::terminate(nvme::FatalStatus status, std::uint32_t information, std::string message) {
  return terminate({.terminate = {.status = status, .information = information}, .message = std::move(message)},
                   reader_.header_bytes());
}

bool Session::terminate(const nvme::Fault& fault, std::span<const std::byte> header) {
  fault_ = fault.message;
  Outgoing outgoing;
  outgoing.owned.assign(header.begin(),
                        header.begin() + static_cast<std::ptrdiff_t>(std::min(header.size(), nvme::kTerminateDataMax)));
  outgoing.data = outgoing.owned;
  send({.type = nvme::PduType::target_terminate, .body = fault.terminate}, std::move(outgoing));
  return false;
}

bool Session::ended_by_controller() const {
  return slot_ && (slot_->closed() || (queue_id_ != 0 && slot_->stopped()));
}

}  // namespace infercluster::target
