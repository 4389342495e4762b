// SPDX-License-Identifier: Apache-2.0
#include "nvme/controller.h"

#include <algorithm>

#include "nvme/bytes.h"

namespace infercluster::nvme {
namespace {

// Offsets of Connect's parameters, in the command and in its data.
constexpr std::uint16_t kQueueIdAt = 42;
constexpr std::uint16_t kQueueSizeAt = 44;
constexpr std::uint16_t kControllerIdAt = 16;
constexpr std::uint16_t kSubsystemNqnAt = 256;
constexpr std::uint16_t kHostNqnAt = 512;

constexpr std::uint8_t kTimeout500ms = 30;  // Linux waits this long for CSTS.RDY, and with 0 not at all
constexpr std::uint16_t kKeepAliveGranularity100ms = 1;
constexpr std::uint8_t kShutdownComplete = 2;
constexpr std::uint8_t kSqEntryBits = 6;
constexpr std::uint8_t kCqEntryBits = 4;
constexpr std::uint32_t kBroadcast = 0xFFFFFFFF;
constexpr std::uint64_t kLogBytesMax = 1U << 20;
constexpr std::size_t kHealthBytes = 512;
constexpr std::size_t kFirmwareBytes = 512;
constexpr std::size_t kErrorEntryBytes = 64;

Reply failure(CommandStatus status) {
  return {.status = status, .result = 0, .data = {}, .held = false};
}
Reply success(std::uint64_t result = 0) {
  return {.status = kSuccess, .result = result, .data = {}, .held = false};
}
Reply refused(ConnectPart part, std::uint16_t offset) {
  return {
      .status = kConnectInvalidParameters, .result = encode_refused_parameter(part, offset), .data = {}, .held = false};
}

// nullopt where the host's memory, as the command describes it, takes exactly `length` bytes; else what is wrong.
std::optional<Reply> check_sgl(const Command& command, std::uint64_t length) {
  constexpr std::uint8_t kPsdt = 0xC0;
  constexpr std::uint8_t kPsdtSgl = 0x40;
  if ((command.flags & kPsdt) != kPsdtSgl) return failure(kInvalidField);
  if (command.sgl.identifier != kSglTransport) return failure(kSglTypeInvalid);
  if (command.sgl.length != length) return failure(kDataSglLengthInvalid);
  return std::nullopt;
}

Reply with_data(const Command& command, std::vector<std::byte> data) {
  if (std::optional<Reply> wrong = check_sgl(command, data.size())) return *std::move(wrong);
  Reply reply = success();
  reply.data = std::move(data);
  return reply;
}

std::vector<std::byte> health_page() {
  std::vector<std::byte> page(kHealthBytes);
  store<std::uint8_t>(page, 3, 100);  // available spare, in percent
  return page;
}

std::vector<std::byte> firmware_page(std::string_view firmware) {
  std::vector<std::byte> page(kFirmwareBytes);
  store<std::uint8_t>(page, 0, 1);  // slot 1 is active
  store_text(page, {.offset = 8, .length = 8}, firmware, ' ');
  return page;
}

std::uint32_t queues_result(std::uint16_t queues) {
  return static_cast<std::uint32_t>(queues - 1) * 0x10001U;
}

}  // namespace

std::optional<Reply> check_connect(const Connect& connect, const ConnectData& data, const Subsystem& subsystem) {
  const bool discovery = data.subsystem_nqn == kDiscoveryNqn;
  if (connect.format != 0) return failure(kConnectIncompatibleFormat);
  if (!discovery && data.subsystem_nqn != subsystem.nqn) return refused(ConnectPart::data, kSubsystemNqnAt);
  if (!check_nqn(data.host_nqn).ok()) return refused(ConnectPart::data, kHostNqnAt);
  if (connect.queue_id > (discovery ? 0 : subsystem.io_queues_max)) return refused(ConnectPart::command, kQueueIdAt);
  if (connect.queue_size == 0 || connect.queue_size >= subsystem.queue_entries_max)
    return refused(ConnectPart::command, kQueueSizeAt);
  // Controllers are made as they are asked for: a host that opens an admin queue cannot choose one.
  const bool any = data.controller_id == kAnyController;
  if (any != (connect.queue_id == 0)) return refused(ConnectPart::data, kControllerIdAt);
  return std::nullopt;
}

Reply Controller::admin(const Command& command, const DiscoveryLog& log) {
  if (command.opcode == kFabrics) return fabrics(command);
  if (!status_.ready) return failure(kCommandSequenceError);
  switch (command.opcode) {
    case kIdentify:
      return identify(command);
    case kGetLogPage:
      return log_page(command, log);
    case kSetFeatures:
      return set_features(command);
    case kGetFeatures:
      return get_features(command);
    case kKeepAlive:
      return success();
    case kAbort:
      return success(1);  // the command was not aborted: it may complete as it likes
    case kAsyncEventRequest:
      if (event_requests_ == kEventRequestsMax) return failure(kAsyncEventLimitExceeded);
      ++event_requests_;
      return {.status = kSuccess, .result = 0, .data = {}, .held = true};
    default:
      return failure(kInvalidOpcode);
  }
}

std::variant<ReadCommand, Reply> Controller::io(const Command& command) {
  if (options_.type != ControllerType::io || !status_.ready) return failure(kCommandSequenceError);
  switch (command.opcode) {
    case kFlush:
      return command.nsid == kNamespaceId || command.nsid == kBroadcast ? success() : failure(kInvalidNamespace);
    case kWrite:
    case kWriteZeroes:
    case kWriteUncorrectable:
    case kDatasetManagement:
      return failure(command.nsid == kNamespaceId ? kNamespaceWriteProtected : kInvalidNamespace);
    case kRead:
      break;
    default:
      return failure(kInvalidOpcode);
  }
  if (command.nsid != kNamespaceId) return failure(kInvalidNamespace);
  const ReadCommand read = decode_read(command);
  if (read.first_block >= subsystem_.blocks || read.blocks > subsystem_.blocks - read.first_block)
    return failure(kLbaOutOfRange);
  if (subsystem_.transfer_bits != 0 && read.blocks > 1U << subsystem_.transfer_bits) return failure(kInvalidField);
  if (std::optional<Reply> wrong = check_sgl(command, std::uint64_t{read.blocks} << kBlockBits))
    return *std::move(wrong);
  return read;
}

Reply Controller::fabrics(const Command& command) {
  switch (fabrics_type(command)) {
    case FabricsType::property_get:
      return get_property(decode_property(command));
    case FabricsType::property_set:
      return set_property(decode_property(command));
    case FabricsType::connect:
      return failure(kCommandSequenceError);  // this queue is connected
    default:
      return failure(kInvalidOpcode);
  }
}

Reply Controller::get_property(const PropertyAccess& access) const {
  if (access.bytes == 8 && access.offset == kPropertyCapabilities) {
    return success(
        encode(Capabilities{.queue_entries_max = static_cast<std::uint16_t>(subsystem_.queue_entries_max - 1),
                            .contiguous_queues = true,
                            .timeout_500ms = kTimeout500ms,
                            .nvm_command_set = true,
                            .page_bits_min = 0}));
  }
  if (access.bytes != 4) return failure(kInvalidField);
  switch (access.offset) {
    case kPropertyVersion:
      return success(kVersion14);
    case kPropertyConfiguration:
      return success(encode(configuration_));
    case kPropertyStatus:
      return success(encode(status_));
    default:
      return failure(kInvalidField);
  }
}

Reply Controller::set_property(const PropertyAccess& access) {
  if (access.bytes != 4 || access.offset != kPropertyConfiguration) return failure(kInvalidField);
  configure(decode_configuration(static_cast<std::uint32_t>(access.value & 0xFFFFFFFFU)));
  return success();
}

void Controller::configure(const Configuration& wanted) {
  const Configuration before = configuration_;
  configuration_ = wanted;
  if (wanted.enable && !before.enable) {
    const bool known = wanted.command_set == 0 && wanted.page_bits == 0 && wanted.arbitration == 0 &&
                       wanted.sq_entry_bits == kSqEntryBits && wanted.cq_entry_bits == kCqEntryBits;
    status_ = {.ready = known, .fatal = !known, .shutdown = 0};
    stopped_ = false;
  }
  if (!wanted.enable && before.enable) {
    status_.ready = false;
    stopped_ = true;
    event_requests_ = 0;
  }
  if (wanted.shutdown != 0 && before.shutdown == 0) {
    status_.ready = false;
    status_.shutdown = kShutdownComplete;
    stopped_ = true;
  }
}

IdentifyController Controller::identity() const {
  const bool discovery = options_.type == ControllerType::discovery;
  return {.serial = subsystem_.serial,
          .model = discovery ? "InferCluster discovery" : "InferCluster",
          .firmware = subsystem_.firmware,
          .many_controllers = true,
          .transfer_bits = subsystem_.transfer_bits,
          .controller_id = options_.id,
          .version = kVersion14,
          .events = 0,
          .type = options_.type,
          .aborts_max = 3,
          .event_requests_max = kEventRequestsMax - 1,
          .log_attributes = kLogLongOffsets,
          .keep_alive_100ms = kKeepAliveGranularity100ms,
          .commands_max = subsystem_.queue_entries_max,
          .namespaces = discovery ? 0 : kNamespaceId,
          .volatile_write_cache = 0,
          .sgls = kSglsSupported | kSglsInCapsuleOffset | kSglsTransport,
          .subsystem_nqn = discovery ? kDiscoveryNqn : subsystem_.nqn,
          .command_capsule_16b = kCommandBytes / 16,
          .response_capsule_16b = kCompletionBytes / 16,
          .in_capsule_offset_16b = 0,
          .sq_entry_bits = kSqEntryBits | kSqEntryBits << 4,
          .cq_entry_bits = kCqEntryBits | kCqEntryBits << 4};
}

Reply Controller::identify(const Command& command) const {
  std::vector<std::byte> data(kIdentifyBytes);
  const std::span<std::byte, kIdentifyBytes> page(data.data(), kIdentifyBytes);
  const auto cns = static_cast<std::uint8_t>(command.dword(10) & 0xFFU);
  if (cns == kCnsController) {
    encode(identity(), page);
    return with_data(command, std::move(data));
  }
  if (options_.type == ControllerType::discovery) return failure(kInvalidField);
  switch (cns) {
    case kCnsNamespace:
      if (command.nsid != kNamespaceId) return failure(kInvalidNamespace);
      encode(IdentifyNamespace{.blocks = subsystem_.blocks,
                               .block_bits = kBlockBits,
                               .metadata_bytes = 0,
                               .protection = 0,
                               .shared = true,
                               .read_only = true,
                               .nguid = {}},
             page);
      break;
    case kCnsActiveNamespaces:
      if (command.nsid >= kBroadcast - 1) return failure(kInvalidNamespace);
      if (command.nsid < kNamespaceId) encode_namespace_list(std::array{kNamespaceId}, page);
      break;
    case kCnsNamespaceDescriptors:
      if (command.nsid != kNamespaceId) return failure(kInvalidNamespace);
      encode_namespace_descriptors(subsystem_.uuid, page);
      break;
    default:
      return failure(kInvalidField);
  }
  return with_data(command, std::move(data));
}

Reply Controller::log_page(const Command& command, const DiscoveryLog& log) const {
  const LogRequest request = decode_log_request(command);
  const bool discovery = options_.type == ControllerType::discovery;
  std::vector<std::byte> page;
  if (request.page == kLogDiscovery && discovery) {
    page = encode(log);
  } else if (request.page == kLogErrors) {
    page.resize(kErrorEntryBytes);
  } else if (request.page == kLogHealth && !discovery) {
    page = health_page();
  } else if (request.page == kLogFirmware && !discovery) {
    page = firmware_page(subsystem_.firmware);
  } else {
    return failure(kInvalidLogPage);
  }
  if (request.offset % 4 != 0 || request.offset > page.size() || request.length > kLogBytesMax)
    return failure(kInvalidField);
  // What lies behind the page's end reads as zeros.
  page.erase(page.begin(), page.begin() + static_cast<std::ptrdiff_t>(request.offset));
  page.resize(request.length);
  return with_data(command, std::move(page));
}

Reply Controller::set_features(const Command& command) {
  switch (command.dword(10) & 0xFFU) {
    case kFeatureQueues: {
      if (options_.type == ControllerType::discovery) return failure(kInvalidField);
      const std::uint32_t submission = (command.dword(11) & 0xFFFFU) + 1;
      const std::uint32_t completion = (command.dword(11) >> 16) + 1;
      if (submission > 0xFFFF || completion > 0xFFFF) return failure(kInvalidField);
      const std::uint32_t granted = std::min({submission, completion, std::uint32_t{subsystem_.io_queues_max}});
      return success(queues_result(static_cast<std::uint16_t>(granted)));
    }
    case kFeatureAsyncEvents:
      events_wanted_ = command.dword(11);
      return success();
    case kFeatureKeepAlive:
      options_.keep_alive_ms = command.dword(11);
      return success();
    default:
      return failure(kInvalidField);
  }
}

Reply Controller::get_features(const Command& command) const {
  switch (command.dword(10) & 0xFFU) {
    case kFeatureQueues:
      if (options_.type == ControllerType::discovery) return failure(kInvalidField);
      return success(queues_result(subsystem_.io_queues_max));
    case kFeatureAsyncEvents:
      return success(events_wanted_);
    case kFeatureKeepAlive:
      return success(options_.keep_alive_ms);
    default:
      return failure(kInvalidField);
  }
}

}  // namespace infercluster::nvme
