// SPDX-License-Identifier: Apache-2.0
#include "initiator/admin.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/units.h"
#include "initiator/authenticate.h"

namespace infercluster::initiator {
namespace {

constexpr std::uint16_t kAdminEntries = 32;
constexpr std::uint8_t kSqEntryBits = 6;
constexpr std::uint8_t kCqEntryBits = 4;
constexpr std::uint32_t kDiscoveryPiece = 64 * kKiB;
constexpr int kDiscoveryTriesMax = 8;

Result<std::vector<std::byte>> read_log(Channel& channel, std::uint64_t bytes) {
  std::vector<std::byte> log;
  while (log.size() < bytes) {
    const std::uint64_t piece = std::min<std::uint64_t>(kDiscoveryPiece, bytes - log.size());
    IC_TRY(const Channel::Reply reply,
           channel.must(nvme::encode_log_request(
                            {.page = nvme::kLogDiscovery, .retain_event = true, .offset = log.size(), .length = piece}),
                        static_cast<std::uint32_t>(piece), "its discovery log"));
    log.insert(log.end(), reply.data.begin(), reply.data.end());
  }
  return log;
}

}  // namespace

Result<nvme::ConnectData> who_am_i(const HostOptions& options, std::string subsystem) {
  nvme::ConnectData self{.host_id = {},
                         .controller_id = nvme::kAnyController,
                         .subsystem_nqn = std::move(subsystem),
                         .host_nqn = options.host_nqn};
  fill_random(self.host_id);
  if (self.host_nqn.empty()) self.host_nqn = "nqn.2014-08.org.nvmexpress:uuid:" + nvme::to_string(self.host_id);
  IC_CHECK(nvme::check_nqn(self.host_nqn));
  return self;
}

ChannelOptions bounded(const HostOptions& options) {
  return {.digests = options.digests,
          .timeout = options.connect_timeout,
          .until = steady_clock().now() + options.connect_timeout};
}

Result<Admin> open_admin(const os::SocketAddress& address, const nvme::ConnectData& self, const HostOptions& options,
                         const ChannelOptions& bounds, std::uint32_t keep_alive_ms) {
  Admin admin;
  IC_TRY(Channel::Opened opened, Channel::open_queue(address, bounds,
                                                     {.format = 0,
                                                      .queue_id = 0,
                                                      .queue_size = kAdminEntries - 1,
                                                      .attributes = 0,
                                                      .keep_alive_ms = keep_alive_ms},
                                                     self));
  admin.channel = std::move(opened.channel);
  Channel& channel = *admin.channel;
  IC_CHECK(authenticate(channel, opened.connected, self, options.credentials));
  admin.controller_id = opened.connected.controller_id;
  const auto get = [&](std::uint32_t offset, std::uint8_t bytes) {
    return channel.must(nvme::encode_property_get({.offset = offset, .bytes = bytes, .value = 0}), 0, "a property");
  };
  IC_TRY(const Channel::Reply capabilities, get(nvme::kPropertyCapabilities, 8));
  admin.capabilities = nvme::decode_capabilities(capabilities.result);
  if (!admin.capabilities.nvm_command_set || admin.capabilities.page_bits_min > 0) {
    return Error(ErrorCode::unsupported,
                 channel.peer() + ": the target does not speak the NVM command set with pages of 4 KiB");
  }
  const nvme::Configuration enable{.enable = true,
                                   .command_set = 0,
                                   .page_bits = 0,
                                   .arbitration = 0,
                                   .shutdown = 0,
                                   .sq_entry_bits = kSqEntryBits,
                                   .cq_entry_bits = kCqEntryBits};
  IC_TRY([[maybe_unused]] const Channel::Reply set,
         channel.must(nvme::encode_property_set(
                          {.offset = nvme::kPropertyConfiguration, .bytes = 4, .value = nvme::encode(enable)}),
                      0, "its enabling"));
  const Clock::TimePoint deadline =
      std::min(bounds.until, steady_clock().now() +
                                 std::chrono::milliseconds(500) * std::max<int>(1, admin.capabilities.timeout_500ms));
  for (;;) {
    IC_TRY(const Channel::Reply status, get(nvme::kPropertyStatus, 4));
    const nvme::ControllerStatus now = nvme::decode_controller_status(static_cast<std::uint32_t>(status.result));
    if (now.fatal) return Error(ErrorCode::io, channel.peer() + ": the target's controller reports a fatal status");
    if (now.ready) return admin;
    if (steady_clock().now() > deadline)
      return Error(ErrorCode::timed_out, channel.peer() + ": the target's controller does not become ready");
  }
}

void shut_down(Channel& channel) {
  const nvme::Configuration bye{.enable = true,
                                .command_set = 0,
                                .page_bits = 0,
                                .arbitration = 0,
                                .shutdown = static_cast<std::uint8_t>(nvme::Shutdown::normal),
                                .sq_entry_bits = kSqEntryBits,
                                .cq_entry_bits = kCqEntryBits};
  // The connection ends in any case.
  (void)channel.command(
      nvme::encode_property_set({.offset = nvme::kPropertyConfiguration, .bytes = 4, .value = nvme::encode(bye)}), {},
      0);
}

std::span<const std::byte, nvme::kIdentifyBytes> identify_page(const Channel::Reply& reply) {
  return std::span<const std::byte, nvme::kIdentifyBytes>(reply.data.data(), nvme::kIdentifyBytes);
}

Result<nvme::DiscoveryLog> discover(const os::SocketAddress& address, const HostOptions& options) {
  IC_TRY(const nvme::ConnectData self, who_am_i(options, nvme::kDiscoveryNqn));
  IC_TRY(const Admin admin, open_admin(address, self, options, bounded(options), 0));
  // A log that changes while it is read in pieces is read again.
  for (int attempt = 0; attempt < kDiscoveryTriesMax; ++attempt) {
    IC_TRY(const std::vector<std::byte> head, read_log(*admin.channel, nvme::kDiscoveryHeaderBytes));
    IC_TRY(const nvme::DiscoveryHeader header, nvme::decode_discovery_header(head));
    IC_TRY(const std::vector<std::byte> bytes,
           read_log(*admin.channel, nvme::kDiscoveryHeaderBytes + header.entries * nvme::kDiscoveryEntryBytes));
    IC_TRY(nvme::DiscoveryLog log, nvme::decode_discovery_log(bytes));
    if (log.generation != header.generation) continue;
    shut_down(*admin.channel);
    return log;
  }
  return Error(ErrorCode::changed, address.to_string() + ": the discovery log changes faster than it can be read");
}

}  // namespace infercluster::initiator
